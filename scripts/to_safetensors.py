#!/usr/bin/env python3
"""Converts the pytorch_model*.bin of a checkpoint to model.safetensors beside them.

    scripts/to_safetensors.py DIR

Needs torch and safetensors (pip install torch safetensors); nothing else in the project does. Names,
shapes and number formats stay as they are. Tensors that share memory, such as a tied head and the
embedding, are stored once, under the name of the embedding. A .bin in several
parts becomes one .safetensors each, with an index. Nothing in the .bin is executed: only tensors are
read from it. The .bin files are kept.
"""

import json
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import save_file
except ImportError as error:
    sys.exit(f"{error}. Install what is needed with: pip install torch safetensors")


def is_head(name):
    return name.split(".")[0] in ("lm_head", "output")


def unshared(tensors):
    """One name for each piece of memory; the embedding's before a head's, the head is derived."""
    kept, seen = {}, {}
    for name in sorted(tensors, key=lambda name: (is_head(name), name)):
        tensor = tensors[name]
        place = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        if tensor.numel() and place in seen:
            print(f"  {name} is {seen[place]}: stored once")
            continue
        seen[place] = name
        # A view of a larger tensor would drag all of it along.
        kept[name] = tensor.contiguous().clone()
    return kept


def convert(source, target):
    print(f"{source.name} -> {target.name}")
    tensors = torch.load(source, map_location="cpu", weights_only=True)
    # Some trainers wrap the weights.
    tensors = tensors.get("state_dict", tensors)
    tensors = unshared({k: v for k, v in tensors.items() if isinstance(v, torch.Tensor)})
    partial = target.with_suffix(".partial")
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.rename(target)
    size_bytes = sum(t.numel() * t.element_size() for t in tensors.values())
    print(f"  {len(tensors)} tensors, {size_bytes / 1e6:.1f} MB")
    return tensors.keys(), size_bytes


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    sources = sorted(folder.glob("pytorch_model*.bin"))
    if not sources:
        sys.exit(f"{folder} has no pytorch_model*.bin, so there is nothing to convert.")
    if list(folder.glob("*.safetensors")):
        sys.exit(f"{folder} already has .safetensors files; remove them to convert again.")
    if len(sources) == 1:
        convert(sources[0], folder / "model.safetensors")
        return
    weight_map, size_bytes = {}, 0
    for number, source in enumerate(sources, 1):
        target = folder / f"model-{number:05}-of-{len(sources):05}.safetensors"
        names, part_bytes = convert(source, target)
        weight_map.update(dict.fromkeys(names, target.name))
        size_bytes += part_bytes
    # Last, so that an interrupted conversion leaves no index that looks complete.
    index = {"metadata": {"total_size": size_bytes}, "weight_map": weight_map}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(weight_map)} tensors in {len(sources)} files")


if __name__ == "__main__":
    main()
