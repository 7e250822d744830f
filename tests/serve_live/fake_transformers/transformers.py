"""Stands where Transformers would: a model of two stages whose hooks send what real ones send.

Each call is a line of calls.jsonl in the model's folder, with what torch was asked for until then.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import hooks

__version__ = "5.17.0"
_HIDDEN, _WIDTH, _VOCABULARY, _FIRST_TOKEN = 512, 64, 1024, 7


class Config(SimpleNamespace):
    pass


class AutoConfig:
    @staticmethod
    def from_pretrained(folder):
        config = json.loads((Path(folder) / "config.json").read_text())
        return Config(folder=folder, dtype=torch.bfloat16, **config)


class GenerationConfig(SimpleNamespace):
    pass


class Model:
    def __init__(self, config, device_map):
        self.folder, self.fault = Path(config.folder), config.fault
        self.last = device_map.get("lm_head")
        self.layers = config.num_hidden_layers
        self.device = torch.device(0)
        self.map = device_map

    @classmethod
    def from_pretrained(cls, path, *, config, state_dict, dtype, device_map, **arguments):
        assert (path is None) == (state_dict == {})
        assert dtype == torch.bfloat16
        model = cls(config, device_map)
        model._write({"built": True, "arguments": arguments})
        if config.fault == "dies-at-once":
            raise RuntimeError("CUDA out of memory")
        return model

    def generate(self, given, *, attention_mask, max_new_tokens, do_sample, **more):
        assert vars(self.generation_config) == {"pad_token_id": 0}
        assert attention_mask.shape == given.shape
        assert do_sample is False
        batch, length = given.shape
        for step in range(max_new_tokens):
            self._step(batch, 1 if step else length)
        self._write({"tokens": max_new_tokens, "batch": batch, **torch.COUNTS})
        ids = [_FIRST_TOKEN + number for number in range(max_new_tokens)]
        found = torch.Tensor(
            (batch, length + max_new_tokens), values=[row + ids for row in given.values]
        )
        if more.get("return_dict_in_generate"):
            logits = [[torch.Scores(one)] for one in ids]
            return SimpleNamespace(sequences=found, logits=logits)
        return found

    def _step(self, batch, tokens):
        if self.last is None:
            return
        state = torch.Tensor((batch, tokens, _HIDDEN), where=0)
        hooks.pre_forward(self.last, state, cache=torch.Tensor((1, 1), where=0))
        turned = torch.Tensor((batch, tokens, _WIDTH), where=self.last)
        for name, place in self.map.items():
            if name.startswith("model.layers.") and place == 0:
                hooks.pre_forward(place, state, position_embeddings=(turned, turned))
        hooks.send_to_device({"logits": torch.Tensor((batch, 1, _VOCABULARY), where=self.last)}, 0)

    def _write(self, line):
        with (self.folder / "calls.jsonl").open("a") as calls:
            calls.write(json.dumps({**line, "map": self.map}) + "\n")


AutoModelForCausalLM = Model
MODEL_FOR_CAUSAL_LM_MAPPING = {Config: Model}
