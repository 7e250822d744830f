"""Parameters of feed-forward blocks: dense, routed experts, shared experts (S1, S3)."""

from linkbound.errors import InputError
from linkbound.model.families import Family
from linkbound.model.keys import Config
from linkbound.model.parts import Part, norm
from linkbound.model.types import DenseFfn, MoeFfn, Role, Shard
from linkbound.values import Value


class Experts(Value, frozen=True, kw_only=True):
    """The routed experts of a model and what stands beside them."""

    block: MoeFfn
    shared_width: int = 0
    """Width of all shared experts together."""
    beside_width: int = 0
    """Width of a dense block that runs beside the experts (Gemma-4)."""
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    router_scales: bool = False


def read_experts(config: Config, family: Family) -> Experts | None:
    """The routed experts; None for a dense model."""
    count = config.count("experts", least=0) or 0
    beside = config.flag("enable_moe_block")
    if not count or beside is False:
        return None
    top_k = config.need("top_k")
    if top_k > count:
        raise InputError(
            f"{config.source} routes a token to {top_k} of {count} experts.",
            why="A token cannot take more experts than there are.",
            hint="Correct num_experts_per_tok.",
        )
    width = config.count("expert_intermediate")
    if width is None:
        width = config.need("intermediate")
    shared, shared_width = _shared(config, width)
    block = MoeFfn(
        experts=count,
        top_k=top_k,
        intermediate=width,
        gated=family.gated,
        shared_experts=shared + (1 if beside else 0),
    )
    return Experts(
        block=block,
        shared_width=shared_width,
        beside_width=config.need("intermediate") if beside else 0,
        router_bias=_router_bias(config, family),
        expert_bias=family.expert_bias,
        shared_gate=family.shared_gate and shared > 0,
        router_scales=beside is True,
    )


def _shared(config: Config, width: int) -> tuple[int, int]:
    """How many shared experts, and their width together."""
    count = config.count("n_shared_experts", least=0)
    if count is None:
        count = config.count("num_shared_experts", least=0)
    total = config.count("shared_expert_intermediate_size", least=0)
    if total is None:
        total = config.count("shared_intermediate_size", least=0)
    if total is None:
        total = config.count("share_expert_dim", least=0)
    if total is not None:
        return (max(count or 1, 1), total) if total else (0, 0)
    each = config.count("moe_shared_expert_intermediate_size") or width
    if count is None and config.text("model_type") in ("llama4", "llama4_text"):
        count = 1
    return count or 0, (count or 0) * each


def _router_bias(config: Config, family: Family) -> bool:
    flags = ("use_routing_bias", "use_moe_router_bias", "moe_router_enable_expert_bias")
    stated = [value for value in map(config.flag, flags) if value is not None]
    return family.router_bias or any(stated) or config.text("topk_method") == "noaux_tc"


def expert_parts(hidden: int, experts: Experts) -> list[Part]:
    """Router, routed experts, shared experts and a dense block beside them."""
    block = experts.block
    matrices = 3 if block.gated else 2
    into = (2 if block.gated else 1) * block.intermediate
    parts = [
        _router(hidden * block.experts + (block.experts if experts.router_bias else 0)),
        _routed("experts", block.experts * matrices * hidden * block.intermediate, "gate_proj"),
    ]
    if experts.expert_bias:
        parts.append(_routed("expert biases", block.experts * (into + hidden), ""))
    if experts.router_scales:
        parts.append(_router(hidden + block.experts))
    if experts.shared_width:
        parts += _dense(hidden, experts.shared_width, block.gated, "mlp.shared_experts", "shared ")
    if experts.shared_gate:
        parts.append(_router(hidden))
    if experts.beside_width:
        parts += _dense(hidden, experts.beside_width, block.gated, "mlp", "")
    return parts


def dense_parts(hidden: int, block: DenseFfn, bias: bool) -> list[Part]:
    """The two or three matrices of a dense block."""
    parts = _dense(hidden, block.intermediate, block.gated, "mlp", "")
    if bias:
        into = (2 if block.gated else 1) * block.intermediate
        parts.append(Part(name="ffn bias", parameters=into, shard=Shard.SPLIT, role=Role.FFN))
        parts.append(norm(hidden, "down bias"))
    return parts


def _dense(hidden: int, width: int, gated: bool, path: str, kind: str) -> list[Part]:
    into = (2 if gated else 1) * hidden * width
    shapes = [
        ("up", into, "gate_proj" if gated else "up_proj"),
        ("down", hidden * width, "down_proj"),
    ]
    return [
        Part(
            name=f"{kind}{'gate up' if gated and name == 'up' else name}",
            parameters=parameters,
            shard=Shard.SPLIT,
            role=Role.FFN,
            module=f"{path}.{module}",
        )
        for name, parameters, module in shapes
    ]


def _router(parameters: int) -> Part:
    # Routers stay unquantised in every scheme met so far.
    return Part(name="router", parameters=parameters, shard=Shard.REPLICATED, role=Role.ROUTER)


def _routed(name: str, parameters: int, module: str) -> Part:
    return Part(
        name=name,
        parameters=parameters,
        shard=Shard.EXPERTS,
        role=Role.ROUTED_EXPERTS,
        module=f"mlp.experts.0.{module}" if module else "",
    )
