# SPDX-License-Identifier: Apache-2.0
"""The safetensors format and the rule of Lockstep's checksum, written from their descriptions."""
import hashlib
import json
import struct


def _checksum(header, values):
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.sha256(text + values).hexdigest()


def read(path):
    """(metadata, {name: (shape, bytes)}); the checksum must be right."""
    with open(path, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    header, values = json.loads(content[8:8 + length]), content[8 + length:]
    stated = header["__metadata__"].pop("sha256")
    assert _checksum(header, values) == stated, path + ": wrong checksum"
    metadata = header.pop("__metadata__")
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(values), path + ": wrong length"
    return metadata, {name: (entry["shape"], values[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write(path, metadata, tensors):
    header, values = {"__metadata__": dict(metadata)}, b""
    for name, (shape, content) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(values), len(values) + len(content)]}
        values += content
    header["__metadata__"]["sha256"] = _checksum(header, values)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + values)
