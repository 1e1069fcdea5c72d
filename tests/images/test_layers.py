"""Merged layers against the same layers extracted one after another. What Docker makes of them: tests/cluster/engine/test_trees.py."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.base.errors import KitError
from kit.registry import oci
from kit.registry.layers import merge

CONFIG = oci.Config.from_json({})
FOLDER, FILE, LINK, HARD = tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def entry(name: str, kind: bytes = FILE, content: str = "", to: str = "", mode: int = 0o644, **headers: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode, info.pax_headers = kind, to, len(content.encode()), mode, headers
    return info, content.encode()


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def pieces(blob: bytes) -> Iterator[bytes]:
    yield from (blob[start : start + 50_000] for start in range(0, len(blob), 50_000))


def layer(blob: bytes) -> oci.Layer:
    return oci.Layer(f"sha256:{hashlib.sha256(blob).hexdigest()}", len(blob), lambda: pieces(blob))


def image(*blobs: bytes) -> oci.Image:
    return oci.Image("test", "", CONFIG, tuple(map(layer, blobs)))


def tree(entries) -> dict[str, tuple]:
    """Name: (type, mode, link, content, headers); a hard link has its target's. Fails where the target is not there yet."""
    found: dict[str, tuple] = {}
    for info, content in entries:
        assert info.name not in found
        if info.islnk():
            found[info.name] = found[info.linkname]
        else:
            kept = tuple(sorted(info.pax_headers.items()))
            found[info.name] = (info.type, info.mode, info.linkname, content.read() if content else b"", kept)
    return found


def merged(*layers: list) -> dict[str, tuple]:
    return tree(merge(image(*(tar(*entries) for entries in layers))))


def plainly(*layers: list) -> dict[str, tuple]:
    """The reference: each layer applied in turn to a dict of names."""
    root: dict[str, tuple] = {}

    def remove(name: str) -> None:
        for known in [known for known in root if known == name or known.startswith(f"{name}/")]:
            del root[known]

    for entries in layers:
        names = [info.name for info, _ in entries]
        for name in names:  # whiteouts are about lower layers, wherever they stand
            folder, _, base = name.rpartition("/")
            if base == ".wh..wh..opq":
                for known in [known for known in root if known.startswith(f"{folder}/" if folder else "")]:
                    del root[known]
            elif base.startswith(".wh."):
                remove(f"{folder}/{base[4:]}".strip("/"))
        for info, content in entries:
            folder, _, base = info.name.rpartition("/")
            while folder:
                root.setdefault(folder, (FOLDER, 0o755, "", b"", ()))
                folder = folder.rpartition("/")[0]
            if base.startswith(".wh."):
                continue
            if not (info.isdir() and root.get(info.name, (None,))[0] == FOLDER):
                remove(info.name)
            if info.islnk():
                root[info.name] = root[info.linkname]
            else:
                root[info.name] = (info.type, info.mode, info.linkname, content, tuple(sorted(info.pax_headers.items())))
    return root


BASE = [
    entry("etc", FOLDER, mode=0o755),
    entry("etc/passwd", content="root"),
    entry("usr", FOLDER, mode=0o755),
    entry("usr/bin", FOLDER, mode=0o755),
    entry("usr/bin/perl", content="perl"),
    entry("usr/bin/perl5", HARD, to="usr/bin/perl"),
    entry("usr/bin/perl5.36", HARD, to="usr/bin/perl5"),
    entry("bin", LINK, to="usr/bin"),
]
ETC, BIN = BASE[0], BASE[3]

STACKS = {
    "nothing": [],
    "one layer": [BASE],
    "empty layers": [[], BASE, []],
    "a deleted file": [BASE, [ETC, entry("etc/.wh.passwd")]],
    "a deleted folder that comes back": [BASE, [entry(".wh.etc")], [ETC, entry("etc/group", content="g")]],
    "an opaque folder": [BASE, [ETC, entry("etc/group", content="g"), entry("etc/.wh..wh..opq")]],
    "an opaque folder, its mark first": [BASE, [entry("etc/.wh..wh..opq"), ETC, entry("etc/group", content="g")]],
    "an opaque root": [BASE, [entry(".wh..wh..opq"), entry("x", content="x")]],
    "a whiteout beside its replacement": [BASE, [entry(".wh.etc"), ETC, entry("etc/new", content="n")]],
    "a replaced file": [BASE, [ETC, entry("etc/passwd", content="other", mode=0o600)]],
    "a folder with new metadata": [BASE, [entry("etc", FOLDER, mode=0o700)]],
    "a folder that became a file": [BASE, [entry("etc", content="file")]],
    "a file that became a folder": [BASE, [entry("etc/passwd", FOLDER, mode=0o755), entry("etc/passwd/x", content="x")]],
    "a folder, a file, a folder": [BASE, [entry("etc", content="file")], [entry("etc", FOLDER, mode=0o711), entry("etc/x", content="x")]],
    "a folder that became a link": [BASE, [entry("etc", LINK, to="/run/etc")]],
    "a link that became a folder": [BASE, [entry("bin", FOLDER), entry("bin/sh", content="sh")]],
    "a hard link whose target was deleted": [BASE, [BIN, entry("usr/bin/.wh.perl")]],
    "a hard link whose target was replaced": [BASE, [BIN, entry("usr/bin/perl", content="new")]],
    "a hard link whose target's folder is gone": [[*BASE, entry("perl", HARD, to="usr/bin/perl5")], [entry(".wh.usr")]],
    "a hard link whose target became opaque": [[*BASE, entry("a", HARD, to="usr/bin/perl")], [BIN, entry("usr/bin/.wh..wh..opq")]],
    "a deleted hard link": [BASE, [BIN, entry("usr/bin/.wh.perl5")]],
    "a hard link to a lower layer": [BASE, [entry("x", HARD, to="etc/passwd")]],
    "a hard link to a lower layer's hard link": [BASE, [entry("x", HARD, to="usr/bin/perl5.36"), entry("y", HARD, to="x")], [entry(".wh.usr")]],
    "a hard link to a lower layer's file, deleted later": [BASE, [entry("x", HARD, to="etc/passwd")], [entry(".wh.etc")]],
    "a hard link to a symbolic link": [[*BASE, entry("sbin", HARD, to="bin")], [entry(".wh.bin")]],
    "folders that no layer names": [[entry("a/b/c", content="c")], [entry("a/d/.wh.e"), entry("f/g", content="g")]],
    "folders that only a lower layer names": [BASE, [entry("usr/bin/sh", content="sh")], [entry("etc/.wh.passwd")]],
    "extended attributes": [[entry("cap", content="x", **{"SCHILY.xattr.user.a": "b"})]],
    "long names": [[entry("n" * 200 + "/" + "m" * 200, content="long"), entry("l", LINK, to="t" * 300)]],
    "names that are not UTF-8": [
        [entry("caf\udce9", content="latin"), entry("é", content="utf"), entry("hard", HARD, to="caf\udce9")],
        [entry(".wh.caf\udce9")],
    ],
    "hostile names": [[entry("a b\n\"'$x\\", content="1"), entry("-rf", content="2"), entry(" ", content="3"), entry(".wha", content="4")]],
}


@pytest.mark.parametrize("name", STACKS)
def test_merged_layers_are_what_extraction_in_turn_gives(name: str) -> None:
    assert merged(*STACKS[name]) == plainly(*STACKS[name])


NAMES = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/b/a", "b/a/b"])


@st.composite
def stacks(draw) -> list[list]:
    """Layers as Docker writes them, over so few names that they collide: every folder on the way is named, nothing twice."""
    layers = []
    for number in range(draw(st.integers(1, 4))):
        shape: dict[str, tuple] = {}
        closed: set[str] = set()  # nothing can be below
        for at, name in enumerate(sorted(draw(st.sets(NAMES, max_size=5)))):
            folder, _, base = name.rpartition("/")
            parents = [name[:i] for i, letter in enumerate(name) if letter == "/"]
            if closed.intersection(parents):
                continue
            for parent in parents:
                shape.setdefault(parent, entry(parent, FOLDER, mode=0o700 + number))
            kind = draw(st.sampled_from(["file", "file", "folder", "deleted", "opaque", "link", "hard", "hard", "hard"]))
            files = [known for known, (info, _) in shape.items() if info.isreg() and ".wh." not in known]
            if kind in ("folder", "opaque"):
                shape[name] = entry(name, FOLDER, mode=0o700 + number)
                if kind == "opaque":
                    shape[f"{name}/.wh..wh..opq"] = entry(f"{name}/.wh..wh..opq")
                continue
            closed.add(name)
            if kind == "deleted":
                whiteout = f"{folder}/.wh.{base}".lstrip("/")
                shape[whiteout] = entry(whiteout)
            elif kind == "hard" and files:
                shape[name] = entry(name, HARD, to=draw(st.sampled_from(files)))
            elif kind == "link":
                shape[name] = entry(name, LINK, to=f"to{number}")
            else:
                shape[name] = entry(name, content=f"{number}.{at}")
        layers.append(list(shape.values()))
    return layers


@settings(max_examples=400, deadline=None, derandomize=True, print_blob=True)
@given(stacks())
def test_any_stack_of_layers_merges_as_extraction_in_turn_does(layers: list[list]) -> None:
    assert merged(*layers) == plainly(*layers)


def test_names_are_given_without_what_some_tools_put_before_them() -> None:
    found = merged([entry("./", FOLDER, mode=0o700), entry("./a", FOLDER), entry("/a//b", content="b"), entry("./c", HARD, to="/a/b")])
    assert sorted(found) == [".", "a", "a/b", "c"]
    assert found["c"][3] == b"b"


def test_what_aufs_kept_for_itself_is_left_out() -> None:
    records = [entry(".wh..wh.aufs"), entry(".wh..wh.plnk", FOLDER), entry(".wh..wh.plnk/81.4", content="x"), entry(".wh..wh.orph", FOLDER)]
    assert sorted(merged([*records, entry("a", content="a")])) == ["a"]


def test_repeated_entries_are_given_once() -> None:
    found = merged([entry("a", FOLDER), entry("a/b", content="b"), entry("a", FOLDER), entry("a/b", content="b"), entry("a/b", HARD, to="a/b")])
    assert sorted(found) == ["a", "a/b"]


def test_a_layer_is_read_again_only_for_a_hard_link_whose_target_is_hidden() -> None:
    opened: list[int] = []
    blobs = [tar(*BASE), tar(BIN, entry("usr/bin/.wh.perl"))]

    def opener(number: int):
        return lambda: (opened.append(number), pieces(blobs[number]))[1]

    layers = [oci.Layer("", len(blob), opener(number)) for number, blob in enumerate(blobs)]
    assert tree(merge(oci.Image("test", "", CONFIG, tuple(layers))))["usr/bin/perl5.36"][3] == b"perl"
    assert opened == [1, 0, 0]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry("a/../../b")], "layer 1 of 1 of test has the name 'a/../../b', which leads out of the image"),
        ([entry("long/" * 100_000)], "layer 1 of 1 of test has a name of 499999 characters, and Linux knows none above 4096"),
        ([entry("x"), entry("l", HARD, to="../x")], "layer 1 of 1 of test has the name '../x', which leads out of the image"),
        ([entry("a", content="1"), entry("a", content="22")], "layer 1 of 1 of test has two entries named 'a', which differ"),
        ([entry("a", content="1"), entry("a", content="2")], "layer 1 of 1 of test has two entries named 'a', which differ"),
        ([entry("a", LINK, to="b"), entry("a/c")], "layer 1 of 1 of test and those above it have contents for the folder '/a', which is none there"),
        ([entry("a/c"), entry("a", LINK, to="b")], "layer 1 of 1 of test and those above it have contents for the folder '/a', which is none there"),
        ([entry("l", HARD, to="x")], "layer 1 of 1 of test has hard links to what no layer has: x"),
    ],
)
def test_a_layer_that_cannot_be_merged_is_named(entries: list, message: str) -> None:
    with pytest.raises(KitError) as error:
        merged(entries)
    assert error.value.problems[0].problem == message
    assert error.value.problems[0].fix.startswith("build the image with docker build")


def test_a_layer_that_writes_through_a_lower_link_is_refused() -> None:
    with pytest.raises(KitError, match=r"layer 1 of 2 of test and those above it have contents for the folder '/bin'"):
        merged(BASE, [entry("bin/sh", content="sh")])


def test_gzip_layers_may_have_several_members_and_padding() -> None:
    blob = tar(entry("a", content="a" * 100_000), entry("b", content="b"))
    members = b"".join(gzip.compress(blob[start : start + 7_000]) for start in range(0, len(blob), 7_000))
    assert tree(merge(image(members + bytes(512)))) == tree(merge(image(blob)))


def test_an_empty_blob_is_an_empty_layer() -> None:
    assert list(merge(image(b"", gzip.compress(b""), tar()))) == []


@pytest.mark.skipif(not shutil.which("xz"), reason="xz is not installed")
def test_xz_layers_are_read_through_the_tool() -> None:
    """As docker load reads them."""
    blob = tar(entry("file", content="x" * 100_000))
    assert tree(merge(image(lzma.compress(blob)))) == tree(merge(image(blob)))


@pytest.mark.skipif(not shutil.which("zstd"), reason="zstd is not installed")
def test_zstd_layers_are_read_through_the_tool() -> None:
    blob = tar(entry("a", content="".join(random.choices("abc", k=3_000_000))), entry("b", content="b"))
    packed = subprocess.run(["zstd", "-c"], input=blob, capture_output=True, check=True).stdout
    assert tree(merge(image(packed))) == tree(merge(image(blob)))
    next(merge(image(packed * 20)))  # one that is not read to its end leaves no process that waits


STOPPED = """
import os, random, signal, subprocess, time
from kit.base import signals
from kit.registry import oci, stream

signals.end_cleanly()
packed = subprocess.run(["zstd", "-c"], input=random.randbytes(1 << 20), capture_output=True, check=True).stdout

def chunks():
    yield packed
    time.sleep(1)  # the reader waits for more
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        yield packed

for chunk in stream.tar(oci.Layer("", 0, chunks), "layer 1", lambda _: None):
    pass
"""


@pytest.mark.skipif(not shutil.which("zstd"), reason="zstd is not installed")
def test_a_signal_ends_the_reading_of_a_zstd_layer() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], timeout=60)
    assert done.returncode == 128 + signal.SIGTERM


def test_a_missing_zstd_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KitError) as error:
        list(merge(image(b"\x28\xb5\x2f\xfd")))
    assert str(error.value) == (
        "kit: layer 1 of 1 of test is compressed with zstd, and this machine has no zstd\n  fix: install zstd, or have the image pushed with gzip"
    )


def damaged(blob: bytes) -> list[bytes]:
    middle = len(blob) // 2
    return [blob[:-5], blob[:middle], blob[:middle] + bytes([blob[middle] ^ 255]) + blob[middle + 1 :], blob + b"more"]


def packers() -> list:
    zstd = [lambda blob: subprocess.run(["zstd", "-c"], input=blob, capture_output=True, check=True).stdout]
    return [lambda blob: blob, gzip.compress, *(zstd if shutil.which("zstd") else [])]


@pytest.mark.parametrize("pack", packers())
def test_a_damaged_layer_is_named_with_both_digests(pack) -> None:
    good = layer(pack(tar(entry("a", content="".join(random.choices("abcdef", k=100_000))))))
    for blob in damaged(b"".join(good.chunks())):
        other = oci.Image("test", "", CONFIG, (good._replace(chunks=lambda blob=blob: pieces(blob)),))
        with pytest.raises(KitError) as error:
            tree(merge(other))
        found = hashlib.sha256(blob).hexdigest()
        expected = f"layer 1 of 1 of test is damaged: it should be {good.digest}, and is sha256:{found} ({len(blob)} of {good.size} bytes)"
        assert error.value.problems[0].problem == expected


def test_a_damaged_header_is_told_by_the_digest() -> None:
    good = tar(entry("a", content="a"), entry("b", content="b"))
    blob = good[:1100] + b"?" + good[1101:]
    with pytest.raises(KitError, match=rf"layer 1 of 1 of test is damaged: it should be {layer(good).digest}, and is {layer(blob).digest}"):
        tree(merge(oci.Image("test", "", CONFIG, (layer(good)._replace(chunks=lambda: pieces(blob)),))))


def test_a_damaged_layer_without_a_digest_is_noticed_by_its_compression() -> None:
    blob = gzip.compress(tar(entry("a", content="".join(random.choices("abcdef", k=100_000)))))
    for broken in damaged(blob)[:3]:
        with pytest.raises(KitError, match=r"layer 1 of 1 of test is damaged: "):
            tree(merge(oci.Image("test", "", CONFIG, (oci.Layer("", 0, lambda broken=broken: pieces(broken)),))))


def test_a_layer_that_is_no_tar_is_named() -> None:
    with pytest.raises(KitError, match="layer 1 of 1 of test is damaged: "):
        tree(merge(image(b"no tar" * 1000)))


def test_a_layer_that_ends_inside_a_file_is_named() -> None:
    whole = tar(entry("a", content="x" * 5_000), entry("b", content="b"))
    for kept in (512 + 1, 512 + 1024, 512 + 5_000):
        with pytest.raises(KitError, match="layer 1 of 1 of test is damaged: unexpected end of data"):
            tree(merge(image(gzip.compress(whole[:kept]))))
    endless = entry("a", content="x" * 10_000)[0]
    endless.size = 8 << 30
    with pytest.raises(KitError, match="layer 1 of 1 of test is damaged: unexpected end of data"):
        tree(merge(image(endless.tobuf() + b"x" * 10_240)))


def test_a_hidden_file_of_exabytes_ends_with_its_layer() -> None:
    endless = entry("a")[0]
    endless.size = 1 << 62
    with pytest.raises(KitError, match="layer 1 of 2 of test is damaged: unexpected end of data"):
        tree(merge(image(endless.tobuf(tarfile.GNU_FORMAT) + b"x" * 10_240, tar(entry(".wh.a")))))


def pax(body: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, len(body)
    return info.tobuf() + body + bytes(-len(body) % 512)


def record(key: str, value: str) -> bytes:
    rest = f" {key}={value}\n"
    return next(f"{size}{rest}".encode() for size in range(len(rest), len(rest) + 9) if len(f"{size}{rest}") == size)


FOLLOWING = tar(entry("a", content="a"))


@pytest.mark.parametrize(
    "headers",
    [
        pax(record("mtime", "inf")),
        pax(record("mtime", "nan")),
        pax(record("GNU.sparse.size", "x")),
        pytest.param(pax(b"16 hdrcharset=\xff\n"), marks=pytest.mark.skipif(sys.version_info < (3, 11, 4), reason="not here: a tarfile that reads it")),
        pax(b"x" * 513) * 1500,  # deeper than Python goes
        pax(bytes((1 << 20) - 1024)) * 2,
        pax(bytes(1 << 20), tarfile.GNUTYPE_LONGNAME),
        pax(bytes(1 << 20), tarfile.GNUTYPE_LONGLINK),
        pax(bytes(1 << 20), tarfile.XGLTYPE),
        FOLLOWING[:1024] + b"no header" + bytes(503),
        FOLLOWING[:1024] + FOLLOWING[:100],
    ],
)
def test_a_header_that_is_broken_or_too_large_is_no_end_and_no_fault_of_kits(headers: bytes) -> None:
    after = b"" if headers.endswith(FOLLOWING[:100]) else FOLLOWING
    with pytest.raises(KitError, match=r"layer 1 of 1 of test is damaged: (a header is broken: |the headers of an entry have more than 1 MiB)"):
        tree(merge(image(headers + after)))


def test_headers_of_nearly_a_megabyte_are_read() -> None:
    name = "long/" * 800 + "name"
    assert list(merged([entry(name, content="a", **{"SCHILY.xattr.user.x": "x" * 1_000_000})]))[:1] == [name]


def test_headers_for_all_entries_mean_nothing_as_for_docker() -> None:
    found = tree(merge(image(pax(record("comment", "mine") + record("uid", "7"), tarfile.XGLTYPE) + tar(entry("a"), entry("b")))))
    assert found["b"][4] == ()


def test_times_and_owners_are_said_once() -> None:
    ((info, _),) = merge(image(tar(entry("a", mtime="7.5", uid="5", gid="6", **{"SCHILY.xattr.user.x": "y"}))))
    assert (info.mtime, info.uid, info.gid, info.pax_headers) == (7, 5, 6, {"SCHILY.xattr.user.x": "y"})


MEASURED = """
import re, sys
from pathlib import Path
from kit.registry import blobs, layers, oci
from kit.base.errors import KitError
try:
    for _ in layers.merge(oci.Image("test", "", oci.Config(), (oci.Layer("", 0, blobs.Extent(Path(sys.argv[1]), 0, 1 << 40).chunks),))):
        pass
except KitError as error:
    print(error)
# Not ru_maxrss, which counts what the process was before this program: a fork of pytest.
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, b"S"])
def test_a_header_of_gigabytes_takes_no_memory(kind: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, 300 << 20
    header = bytearray(info.tobuf())
    sparse = bytes(504) + b"\1" + bytes(7)
    if kind == b"S":
        sparse = (b"%011o\0" % 512) * 42 + b"\1" + bytes(7)  # of an old sparse file: this block goes on in the next
        header[482] = 1
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    packer = zlib.compressobj(1, wbits=31)
    with (tmp_path / "layer").open("wb") as file:
        file.write(packer.compress(bytes(header)))
        for _ in range(300 * 4):
            file.write(packer.compress(sparse * 512))
        file.write(packer.flush())
    done = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path / "layer")], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kit: layer 1 of 1 of test is damaged: the headers of an entry have more than 1 MiB\n")
    assert int(done.stdout.split()[-1]) < 100_000  # KiB; 1.2 million without the limit


def test_a_sparse_file_is_given_with_its_holes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.seek(5_000_000)
        file.write(b"end")
    blob = subprocess.run(["tar", "--sparse", "--format=pax", "-cC", str(tmp_path), "sparse"], capture_output=True, check=True).stdout
    assert len(blob) < 100_000
    (info, content), *rest = ((info, content.read() if content else b"") for info, content in merge(image(blob)))
    assert (info.name, info.type, info.size, rest) == ("sparse", tarfile.REGTYPE, 5_000_003, [])
    assert content == bytes(5_000_000) + b"end"
    assert not [key for key in info.pax_headers if "sparse" in key]


def test_progress_adds_up_to_the_layers_sizes() -> None:
    both = image(gzip.compress(tar(*BASE)), tar(entry("x", content="x" * 1_000_000)))
    counts: list[int] = []
    for _ in merge(both, counts.append):
        pass
    assert sum(counts) == sum(one.size for one in both.layers)
