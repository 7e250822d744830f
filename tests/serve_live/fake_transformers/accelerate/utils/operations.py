"""Sends nested values part by part, by its own name: a function put there is called for each."""


def send_to_device(value, device, non_blocking=False, skip_keys=None):
    if isinstance(value, tuple):
        return tuple(send_to_device(one, device, non_blocking, skip_keys) for one in value)
    if isinstance(value, dict):
        skipped = skip_keys or []
        return {
            name: one if name in skipped else send_to_device(one, device, non_blocking, skip_keys)
            for name, one in value.items()
        }
    return value.to(device, non_blocking=non_blocking) if hasattr(value, "to") else value
