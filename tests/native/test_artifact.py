"""The artefact container: what goes in comes out, and nothing damaged comes through, in Python or in C."""

import hashlib
import random
import struct

import pytest

from adaptive_eager.native.artifact import DTYPES, MAGIC, Artifact, ArtifactError, TensorSpec, pack, unpack
from adaptive_eager.native.library import ffi

CODE = bytes(range(200))
TENSORS = (TensorSpec("x", "input", "float32"), TensorSpec("y", "output", "float64", 4096))
METADATA = {"acc_bytes": "64", "block": "32", "ä": "ünï"}
PAYLOAD = 44


def sample() -> bytes:
    return pack("x86_64/znver4/abc", ["k", "k2"], CODE, TENSORS, METADATA)


def sealed(payload: bytes, version: int = 1) -> bytes:
    """Any payload with a right checksum: what damage never looks like, and what an attacker could write."""
    return MAGIC + struct.pack("<I", version) + hashlib.sha256(payload).digest() + payload


@pytest.fixture
def load_status(open_lib):
    """The status that nrt_load gives bytes; 0 if all that it has against them is that CODE is no object code."""

    def load(data: bytes) -> int:
        model = ffi.new("nrt_model_t **")
        status = open_lib.nrt_load(ffi.from_buffer(data), len(data), 0, -1, model)
        reason = ffi.string(open_lib.nrtx_load_error())
        if reason.startswith(b"damaged object code"):
            return 0
        assert reason == b"not a sound artefact of this version"
        return status

    return load


def test_round_trip():
    assert unpack(sample()) == Artifact("x86_64/znver4/abc", ("k", "k2"), CODE, TENSORS, METADATA)
    assert unpack(pack("", ["k"], b"c")) == Artifact("", ("k",), b"c")


def test_same_arguments_give_the_same_bytes():
    backwards = dict(reversed(METADATA.items()))
    assert pack("t", ["k"], CODE, TENSORS, METADATA) == pack("t", ["k"], CODE, TENSORS, backwards)


def test_the_software_core_accepts_what_pack_makes(load_status):
    assert load_status(sample()) == 0
    every = [TensorSpec(name, "input", name) for name in DTYPES]
    assert load_status(pack("t", ["k"], CODE, every)) == 0
    for size in range(1, 200):  # every padding of the checksum's last block
        assert load_status(pack("t", ["k"], bytes(size))) == 0


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"entries": []}, "at least one entry"),
        ({"code": b""}, "object code"),
        ({"entries": ["k", "k"]}, "'k' is taken"),
        ({"entries": [""]}, "empty"),
        ({"entries": ["a\0b"]}, "zero byte"),
        ({"entries": ["ä" * 128]}, "longer than 255"),
        ({"tensors": [TensorSpec("launch", "input", "uint8")]}, "'launch' is taken"),
        ({"tensors": [TensorSpec("x", "inout", "uint8")]}, "usage 'inout'"),
        ({"tensors": [TensorSpec("x", "input", "quad")]}, "dtype 'quad'"),
        ({"tensors": [TensorSpec("x", "input", "int8", -1)]}, "out of range"),
        ({"target": "\ud800"}, "UTF-8"),
    ],
)
def test_pack_refuses(changes, complaint):
    with pytest.raises(ArtifactError, match=complaint):
        pack(**{"target": "t", "entries": ["k"], "code": CODE, **changes})


def test_other_versions(lib, load_status):
    data = sealed(sample()[PAYLOAD:], version=2)
    with pytest.raises(ArtifactError, match="format version 2, and this needs 1"):
        unpack(data)
    assert load_status(data) == lib.NRT_UNSUPPORTED_NEFF_VERSION


def test_every_truncation_is_found(lib, load_status):
    data = sample()
    for size in range(len(data)):
        with pytest.raises(ArtifactError):
            unpack(data[:size])
        assert load_status(data[:size]) == lib.NRT_INVALID


def test_every_flipped_byte_is_found(lib, load_status):
    data = sample()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(ArtifactError):
            unpack(bytes(damaged))
        in_version = 8 <= position < 12
        expected = lib.NRT_UNSUPPORTED_NEFF_VERSION if in_version else lib.NRT_INVALID
        assert load_status(bytes(damaged)) == expected


def test_every_sealed_truncation_is_found(lib, load_status):
    payload = sample()[PAYLOAD:]
    for size in range(len(payload)):
        with pytest.raises(ArtifactError):
            unpack(sealed(payload[:size]))
        assert load_status(sealed(payload[:size])) == lib.NRT_INVALID
    assert load_status(sealed(payload + b"x")) == lib.NRT_INVALID


def test_sealed_damage_never_crashes(lib, load_status):
    """With a right checksum, damage may be harmless (another letter in a name); Python and C agree on which is."""
    payload, dice = sample()[PAYLOAD:], random.Random(1)
    outcomes = {0: 0, lib.NRT_INVALID: 0}
    for _ in range(5000):
        damaged = bytearray(payload)
        for _ in range(dice.choice([1, 1, 2, 8])):
            position = dice.randrange(len(damaged) - len(CODE))
            damaged[position] = dice.choice([0, 1, 0x7F, 0xFF, dice.randrange(256)])
        data = sealed(bytes(damaged))
        try:
            unpack(data)
        except ArtifactError as error:
            if "damaged text" not in str(error):  # C does not look at text
                assert load_status(data) == lib.NRT_INVALID
                outcomes[lib.NRT_INVALID] += 1
        else:
            assert load_status(data) == 0
            outcomes[0] += 1
    assert min(outcomes.values()) > 100


def test_huge_counts_reserve_nothing(lib, load_status):
    head = struct.pack("<I", 0)  # no target
    for payload in (
        head + struct.pack("<I", 0xFFFFFFFF),
        head + struct.pack("<II", 1, 0xFFFFFFFF),
        head + struct.pack("<II1sII", 1, 1, b"k", 0, 0) + struct.pack("<Q", (1 << 64) - 1),
    ):
        with pytest.raises(ArtifactError):
            unpack(sealed(payload))
        assert load_status(sealed(payload)) == lib.NRT_INVALID
