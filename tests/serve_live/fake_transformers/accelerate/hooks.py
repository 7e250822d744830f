"""What a module's hook does before it: everything it is given goes to its device."""

from accelerate.utils.operations import send_to_device


def pre_forward(device, *args, **kwargs):
    return send_to_device(args, device), send_to_device(kwargs, device, skip_keys=["cache"])
