"""Method strings: every name, level, shorthand, fall-back and error of the table of methods."""

import dataclasses
import importlib
import pickle
import sys

import numpy as np
import pytest

from sb3_extra_buffers.codecs import CODECS, Codec, get_codec, optional, parse_method

METHODS = ["none", "rle", "rle-jit", "gzip", "igzip", "zstd", "lz4-frame", "lz4-block", "delta", "near"]

LEVELS = {
    "gzip": [*range(10)],
    "igzip": [*range(4)],
    "zstd": [*range(-100, 0), *range(1, 23)],
    "lz4-frame": [-65_537, -100, -1, *range(17)],
    "lz4-block": [-65_537, -100, -1, *range(13)],
    "delta": [1, 2],
}


def settings_of(codec: Codec) -> dict[str, object]:
    return {field.name: getattr(codec, field.name) for field in dataclasses.fields(codec)}


def test_the_registry_has_every_method_and_no_other():
    assert sorted(CODECS) == sorted(METHODS)
    assert all(issubclass(kind, Codec) and kind.name == name for name, kind in CODECS.items())


@pytest.mark.parametrize("method", METHODS)
def test_bare_names(method):
    assert parse_method(method) == (method, None)
    assert type(get_codec(method)) is CODECS[method]


@pytest.mark.parametrize(("method", "level"), [("zstd", -3), ("lz4-block", 0), ("lz4-frame", 0)])
def test_default_levels(method, level):
    assert get_codec(method).level == level


@pytest.mark.parametrize("method", LEVELS)
def test_every_level(method):
    for level in LEVELS[method]:
        assert parse_method(f"{method}/{level}") == (method, level)
        assert get_codec(f"{method}/{level}").level == level


@pytest.mark.parametrize("method", LEVELS)
def test_every_level_works(method):
    frame = np.arange(64, dtype=np.uint8).repeat(4)
    for level in LEVELS[method]:
        codec = get_codec(f"{method}/{level}")
        out = np.empty_like(frame)
        codec.decode(np.frombuffer(codec.encode(frame), np.uint8), out)
        assert out.tobytes() == frame.tobytes(), level


@pytest.mark.parametrize(
    ("shorthand", "name", "level"),
    [
        ("igzip3", "igzip", 3),
        ("igzip0", "igzip", 0),
        ("gzip0", "gzip", 0),
        ("gzip9", "gzip", 9),
        ("zstd-5", "zstd", -5),
        ("zstd-100", "zstd", -100),
        ("zstd3", "zstd", 3),
        ("zstd22", "zstd", 22),
        ("zstd/22", "zstd", 22),
        ("lz4-frame/5", "lz4-frame", 5),
        ("lz4-frame/-5", "lz4-frame", -5),
        ("lz4-block/12", "lz4-block", 12),
        ("delta1", "delta", 1),
        ("delta/1", "delta", 1),
    ],
)
def test_shorthands(shorthand, name, level):
    assert parse_method(shorthand) == (name, level)
    codec = get_codec(shorthand)
    assert (codec.name, codec.level) == (name, level)


@pytest.mark.parametrize(
    "method",
    [
        "",
        " ",
        "zst",
        "zst3",
        "Zstd",
        "ZSTD3",
        "lz4",
        "lz4/3",
        "rle_jit",
        "lz4-frame5",
        "lz4-frame-5",
        "lz4-block5",
        "zstd--3",
        "zstd+3",
        "zstd/+3",
        "zstd/",
        "zstd//3",
        "zstd 3",
        "zstd3 ",
        " zstd3",
        "zstd3\n",
        "zstd\n",
        "zstd3.0",
        "zstd/3/3",
        "zstd٣",  # an Arabic digit three
        "/3",
        "3",
        "gzip-",
    ],
)
def test_unknown_names_and_malformed_shorthands(method):
    with pytest.raises(ValueError, match="unknown compression method") as caught:
        get_codec(method)
    message = str(caught.value)
    assert repr(method) in message
    assert all(name in message for name in METHODS)


@pytest.mark.parametrize(
    ("method", "given", "allowed"),
    [
        ("zstd0", "0", ["-100..-1", "1..22"]),
        ("zstd23", "23", ["-100..-1", "1..22"]),
        ("zstd-101", "-101", ["-100..-1", "1..22"]),
        ("gzip10", "10", ["0..9"]),
        ("gzip-1", "-1", ["0..9"]),
        ("igzip4", "4", ["0..3"]),
        ("igzip-1", "-1", ["0..3"]),
        ("lz4-block/13", "13", ["0..12"]),
        ("lz4-frame/17", "17", ["0..16"]),
        ("rle3", "3", ["no levels"]),
        ("rle-jit/3", "3", ["no levels"]),
        ("none1", "1", ["no levels"]),
        ("delta/3", "3", ["1..2"]),
        ("delta0", "0", ["1..2"]),
    ],
)
def test_levels_out_of_range(method, given, allowed):
    for parse in (parse_method, get_codec):
        with pytest.raises(ValueError, match="has no level") as caught:
            parse(method)
        message = str(caught.value)
        assert repr(method) in message
        assert given in message
        assert all(span in message for span in allowed)


def test_auto_is_no_codec_and_the_error_does_not_call_it_known():
    with pytest.raises(ValueError, match="auto") as caught:
        get_codec("auto")
    assert "known: auto" not in str(caught.value)


@pytest.mark.parametrize("method", [None, 3, b"zstd", ("zstd", 3), float("nan")])
def test_a_method_is_a_string(method):
    with pytest.raises(TypeError, match="string"):
        get_codec(method)


@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [
        ("zstd", "zstandard", "zstd"),
        ("zstd-3", "zstandard", "zstd"),
        ("zstd22", "zstandard", "zstd"),
        ("lz4-frame", "lz4.frame", "lz4"),
        ("lz4-frame/9", "lz4.frame", "lz4"),
        ("lz4-block", "lz4.block", "lz4"),
        ("lz4-block/9", "lz4.block", "lz4"),
    ],
)
def test_a_missing_library_says_how_to_install_it(monkeypatch, method, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match="pip install") as caught:
        get_codec(method)
    assert f'pip install "sb3-extra-buffers[{extra}]"' in str(caught.value)


@pytest.mark.parametrize("probe", ["has_numba", "has_igzip", "has_zstd", "has_lz4"])
def test_probes(monkeypatch, probe):
    module = {"has_numba": "numba", "has_igzip": "isal", "has_zstd": "zstandard", "has_lz4": "lz4"}[probe]
    assert getattr(optional, probe)() is (importlib.util.find_spec(module) is not None)
    monkeypatch.setitem(sys.modules, module, None)
    assert getattr(optional, probe)() is False


@pytest.mark.parametrize(("method", "level"), [("igzip", None), ("igzip3", 3), ("igzip1", 1), ("igzip0", 1)])
def test_igzip_falls_back_to_gzip(monkeypatch, method, level):
    monkeypatch.setitem(sys.modules, "isal", None)
    with pytest.warns(UserWarning, match="falls back to gzip") as caught:
        codec = get_codec(method)
    assert 'pip install "sb3-extra-buffers[isal]"' in str(caught[0].message)
    assert len(caught) == 1
    # igzip's level 0 is its least; gzip's 0 stores, its least is 1.
    assert codec == (get_codec("gzip") if level is None else get_codec(f"gzip{level}"))


def test_rle_jit_falls_back_to_rle(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.warns(UserWarning, match="falls back to rle") as caught:
        codec = get_codec("rle-jit", item_bytes=4, runs_type=np.uint16)
    assert 'pip install "sb3-extra-buffers[numba]"' in str(caught[0].message)
    assert len(caught) == 1
    assert codec == get_codec("rle", item_bytes=4, runs_type=np.uint16)


@pytest.mark.parametrize("method", ["igzip4", "igzip-1"])
def test_levels_are_checked_before_falling_back(monkeypatch, method):
    monkeypatch.setitem(sys.modules, "isal", None)
    with pytest.raises(ValueError, match=r"0\.\.3"):
        get_codec(method)


def test_delta_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    codec = get_codec("delta")
    frame = np.arange(32, dtype=np.uint8)
    out = np.empty_like(frame)
    codec.decode(np.frombuffer(codec.encode(frame), np.uint8), out)
    assert out.tobytes() == frame.tobytes()


def test_delta_has_two_levels():
    assert get_codec("delta/1") == get_codec("delta")
    assert get_codec("delta2") == get_codec("delta/2") == get_codec("delta", {"compresslevel": 2})
    assert get_codec("delta/2") != get_codec("delta")
    assert get_codec("delta/2").name == "delta/2"  # its payloads are of another format
    assert get_codec("delta/2", {"keys": 0}, row_bytes=84).row_bytes == 84


def test_filters_stand_before_a_codec():
    codec = get_codec("lz4-block", {"filter": "palette"}, channels=4, planar=False, item_bytes=1)
    assert codec.inner == get_codec("lz4-block")
    assert (codec.channels, codec.planar) == (4, False)
    assert get_codec("gzip1", {"filter": "interleave"}, channels=3).inner == get_codec("gzip1")
    assert get_codec("gzip1", {"filter": None}, channels=3) == get_codec("gzip1")


def test_codecs_adapt_to_another_layout():
    codec = get_codec("delta/2", {"filter": "palette", "keys": 3}, channels=3, planar=True, row_bytes=10)
    picture = {"channels": 4, "planar": False, "row_bytes": 20}
    assert codec.adapted(**picture) == get_codec("delta/2", {"filter": "palette", "keys": 3}, **picture)
    assert get_codec("zstd3").adapted(**picture) == get_codec("zstd3")


def test_unknown_filters_are_errors():
    with pytest.raises(ValueError, match="unknown filter 'pallete'; known: palette, interleave"):
        get_codec("zstd3", {"filter": "pallete"})


def test_compression_kwargs_set_what_the_codec_has():
    assert get_codec("zstd", {"dictionary_bytes": 4096}).dictionary_bytes == 4096
    assert get_codec("zstd", {"dictionary_bytes": 0}).dictionary_bytes == 0
    assert get_codec("delta", {"keys": 4}).keys == 4
    assert np.dtype(get_codec("rle", {"runs_type": np.uint8}).runs_type) == np.uint8


@pytest.mark.parametrize(("method", "level"), [("gzip", 9), ("igzip", 0), ("zstd", -20), ("lz4-frame", 16)])
def test_compresslevel_sets_the_level(method, level):
    assert get_codec(method, {"compresslevel": level}) == get_codec(f"{method}/{level}")


@pytest.mark.parametrize(
    ("method", "level"), [("gzip", 10), ("zstd", 0), ("lz4-block", 13), ("rle", 1), ("gzip", "fast"), ("gzip", 1.5)]
)
def test_compresslevel_is_checked(method, level):
    with pytest.raises(ValueError, match=str(level)):
        get_codec(method, {"compresslevel": level})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("where", ["compression_kwargs", "decompression_kwargs"])
def test_unknown_settings_are_errors(method, where):
    with pytest.raises(ValueError, match="unknown settings") as caught:
        get_codec(method, **{where: {"compreslevel": 3}})
    assert "compreslevel" in str(caught.value)
    assert method in str(caught.value)


@pytest.mark.parametrize("kwargs", [None, {}])
def test_no_settings(kwargs):
    assert get_codec("zstd3", kwargs, kwargs) == get_codec("zstd3")


@pytest.mark.parametrize(
    ("method", "kwargs"),
    [
        ("delta", {"keys": 0}),
        ("delta", {"keys": -1}),
        ("rle", {"runs_type": np.float32}),
        ("rle", {"runs_type": bool}),
        ("zstd", {"dictionary_bytes": -1}),
    ],
)
def test_settings_that_cannot_be_are_errors(method, kwargs):
    with pytest.raises(ValueError, match="|".join(kwargs) + "|key"):
        get_codec(method, kwargs)


def test_the_callers_dicts_are_not_changed():
    compression, decompression = {"compresslevel": 3}, {}
    get_codec("gzip", compression, decompression)
    assert compression == {"compresslevel": 3}
    assert decompression == {}


def test_settings_apply_only_where_the_codec_has_them():
    assert get_codec("zstd3", item_bytes=4, runs_type=np.uint16) == get_codec("zstd3")
    assert settings_of(get_codec("rle", item_bytes=4))["item_bytes"] == 4


@pytest.mark.parametrize("method", [*METHODS, "zstd3", "gzip0", "lz4-block/-7", "delta/2"])
def test_codecs_are_values(method):
    one, two = get_codec(method), get_codec(method)
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(one) == repr(two)
    assert repr(one).startswith(type(one).__name__ + "(")
    for name, value in settings_of(one).items():
        assert f"{name}={value!r}" in repr(one)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.anything = 1


def test_different_codecs_differ():
    codecs = [get_codec(method) for method in [*METHODS, "zstd3", "zstd4", "gzip1", "gzip2"]]
    assert len(set(codecs)) == len(codecs)
    assert get_codec("delta", {"keys": 4}) != get_codec("delta")


def test_one_type_however_it_is_spelled_makes_one_codec():
    one, two, three = (get_codec("rle", runs_type=kind) for kind in (np.uint16, "uint16", np.dtype(np.uint16)))
    assert one == two == three
    assert hash(one) == hash(two) == hash(three)
