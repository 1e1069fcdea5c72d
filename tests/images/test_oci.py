"""Images in files: each form that tools write, and what is said of files that are none of them."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from kit.base.errors import KitError
from kit.images.sources import find
from kit.registry import oci
from kit.remote import context
from test_registry import contents, digest

from samples import docker_archive, tar

HERE = oci.architecture()
SAID = {
    "Env": ["PATH=/bin", "A=b=c"],
    "WorkingDir": "/workspace",
    "Entrypoint": ["/entry", "with space"],
    "Cmd": ["bash"],
    "Labels": {"com.nvidia.volumes.needed": "x"},
}
CONFIG = oci.Config(("PATH=/bin", "A=b=c"), "/workspace", ("/entry", "with space"), ("bash",), {"com.nvidia.volumes.needed": "x"})
AGAIN = "save the image again, and compare the file's size with the original's"


LOW, TOP = tar({"low": b"low", "both": b"low"}), tar({"both": b"top"})
FILES = {"low": b"low", "both": b"top"}


def config(architecture: str = HERE, said: dict | None = SAID, layers: tuple[bytes, ...] = (LOW, TOP)) -> bytes:
    return json.dumps({"architecture": architecture, "os": "linux", "config": said, "rootfs": {"diff_ids": [digest(layer) for layer in layers]}}).encode()


def old_archive(**changes: bytes) -> dict[str, bytes]:
    """What docker save wrote before version 25."""
    manifest = [{"Config": "c.json", "RepoTags": ["app:v1"], "Layers": ["aa/layer.tar", "bb/layer.tar"]}]
    return {"c.json": config(), "aa/layer.tar": LOW, "bb/layer.tar": TOP, "manifest.json": json.dumps(manifest).encode(), **changes}


class Layout:
    """An OCI layout in the making."""

    def __init__(self) -> None:
        self.files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(self, content: bytes, **more: object) -> dict:
        self.files[f"blobs/sha256/{digest(content)[7:]}"] = content
        return {"digest": digest(content), "size": len(content), **more}

    def image(self, architecture: str = HERE, name: str = "", platform: bool = True, layers: tuple[bytes, ...] = (gzip.compress(LOW), TOP)) -> dict:
        document = {"config": self.blob(config(architecture)), "layers": [self.blob(layer) for layer in layers]}
        more: dict = {"platform": {"os": "linux", "architecture": architecture}} if platform else {}
        return self.blob(json.dumps(document).encode(), **more, **({"annotations": {oci.NAMES[1]: name}} if name else {}))

    def index(self, *entries: dict) -> dict:
        return self.blob(json.dumps({"manifests": entries}).encode())

    def written(self, *entries: dict) -> dict[str, bytes]:
        return {**self.files, "index.json": json.dumps({"manifests": entries}).encode()}


def archive(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(tar(files))
    return path


def folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def problem(path: Path, reference: str = "") -> tuple[str, str]:
    with pytest.raises(KitError) as error:
        oci.open_archive(path, reference)
    return error.value.problems[0][1:]


@pytest.mark.parametrize("name", find.ARCHIVES)
def test_a_recipe_may_have_the_name_of_a_kind_of_archives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the folder of what runs in a cloud of this name."""
    monkeypatch.chdir(tmp_path)
    assert find.source(name, print, wanted="") is None and context._image(name) is None
    folder(tmp_path / name, Layout().written())
    with pytest.raises(KitError, match="is for nothing"):
        find.source(name, print, wanted="")


def test_a_docker_archive_of_the_old_form_is_read(tmp_path: Path) -> None:
    image = oci.open_archive(archive(tmp_path / "a b\n.tar", old_archive()))
    assert image[:3] == ("app:v1", digest(config()), CONFIG)
    assert [layer[:2] for layer in image.layers] == [(digest(LOW), len(LOW)), (digest(TOP), len(TOP))]
    assert contents(image) == FILES


def test_a_damaged_layer_of_the_old_form_is_noticed(tmp_path: Path) -> None:
    image = oci.open_archive(archive(tmp_path / "a.tar", old_archive(**{"bb/layer.tar": TOP.replace(b"top", b"pot")})))
    with pytest.raises(KitError, match=f"layer 2 of 2 of app:v1 is damaged: it should be {digest(TOP)}"):
        contents(image)


def test_equal_layers_that_docker_linked_are_found(tmp_path: Path) -> None:
    files = old_archive(**{"c.json": config(layers=(LOW, LOW))})
    del files["bb/layer.tar"]
    link = tarfile.TarInfo("bb/layer.tar")
    link.type, link.linkname = tarfile.SYMTYPE, "../aa/layer.tar"
    with tarfile.open(archive(tmp_path / "a.tar", files), "a") as saved:
        saved.addfile(link)
    assert contents(oci.open_archive(tmp_path / "a.tar")) == {"low": b"low", "both": b"low"}


def test_a_docker_archive_of_todays_form_is_read(tmp_path: Path) -> None:
    made = Layout()
    layers, document = [made.blob(LOW), made.blob(TOP)], made.blob(config())
    names = [f"blobs/sha256/{entry['digest'][7:]}" for entry in (document, *layers)]
    made.files["manifest.json"] = json.dumps([{"Config": names[0], "RepoTags": None, "Layers": names[1:]}]).encode()
    image = oci.open_archive(archive(tmp_path / "a.tar", made.written(made.image())))
    assert image[:3] == ("a.tar", document["digest"], CONFIG)
    assert [layer.digest for layer in image.layers] == [digest(LOW), digest(TOP)]
    assert contents(image) == FILES


def test_the_file_of_an_archive_needs_half_of_layers_that_are_not_compressed(tmp_path: Path) -> None:
    for layer, part in ((LOW, 2), (gzip.compress(LOW), 1)):
        found = find.source(str(docker_archive(tmp_path / "a.tar", layer=layer)), print, wanted="")
        assert found and (found.size, found.needs) == (len(layer), len(layer) // part)


@pytest.mark.parametrize("write", [archive, folder])
def test_an_oci_layout_is_read_as_a_folder_and_as_a_tar(write, tmp_path: Path) -> None:
    made = Layout()
    entry = made.image(name="v1", platform=False)
    image = oci.open_archive(write(tmp_path / "layout", made.written(entry)))
    assert image[:3] == ("v1", entry["digest"], CONFIG)
    assert contents(image) == FILES


def test_names_may_start_with_a_dot_and_a_slash(tmp_path: Path) -> None:
    made = Layout()
    files = {f"./{name}": content for name, content in made.written(made.image()).items()}
    assert contents(oci.open_archive(archive(tmp_path / "a.tar", files))) == FILES


def test_this_machines_image_is_chosen_in_nested_indexes(tmp_path: Path) -> None:
    made = Layout()
    attestation = {**made.blob(b"{}"), "platform": {"os": "unknown", "architecture": "unknown"}}
    own = made.image()
    index = made.index(made.image("vax", layers=(TOP,)), attestation, own)
    image = oci.open_archive(archive(tmp_path / "a.tar", made.written({**index, "annotations": {oci.NAMES[0]: "docker.io/library/app:v1"}})))
    assert image[:2] == ("docker.io/library/app:v1", own["digest"])
    flat = oci.open_archive(folder(tmp_path / "flat", made.written(made.image("vax"), attestation, own)))
    assert flat[:2] == ("flat", own["digest"])


def test_what_a_config_leaves_out_is_empty() -> None:
    empty = oci.Config((), "", (), (), {})
    for document in ({}, {"config": None}, {"config": {}}, {"config": dict.fromkeys(SAID)}):
        assert oci.Config.from_json(document) == empty


@pytest.mark.parametrize(
    ("given", "found"),
    [("../../etc", "/etc"), ("work", "/work"), ("/a/../../b/./c//", "/b/c"), ("/", "/"), ("..", "/"), ("", "")],
)
def test_a_working_directory_is_read_from_the_root_and_does_not_leave_it(given: str, found: str) -> None:
    assert oci.Config.from_json({"config": {"WorkingDir": given}}).workdir == found


@pytest.mark.parametrize(
    "said", ["x", {"Env": [1]}, {"Env": 1}, {"Cmd": [None]}, {"WorkingDir": 1}, {"Labels": {"a": 1}}, {"Labels": ["a"]}, {"Entrypoint": [[]]}]
)
def test_a_config_of_another_form_is_said(said: object, tmp_path: Path) -> None:
    saved = archive(tmp_path / "a.tar", old_archive(**{"c.json": config(said=said)}))  # type: ignore[arg-type]
    assert problem(saved)[0].startswith(f"{saved} is damaged: its manifest is not of the form that images have")


def test_a_layout_that_holds_no_image_is_refused(tmp_path: Path) -> None:
    made = Layout()
    document = {"config": made.blob(b"{}", mediaType="application/vnd.cncf.helm.config.v1+json"), "layers": []}
    path = folder(tmp_path / "layout", made.written(made.blob(json.dumps(document).encode())))
    assert problem(path)[0] == f"{path} is not a container image: its configuration is of the type application/vnd.cncf.helm.config.v1+json"


def test_one_of_several_images_is_chosen_by_name(tmp_path: Path) -> None:
    manifest = [
        {"Config": "c.json", "RepoTags": ["app:v1", "app:latest"], "Layers": ["aa/layer.tar"]},
        {"Config": "d.json", "RepoTags": ["other:v2"], "Layers": ["bb/layer.tar"]},
    ]
    files = {"manifest.json": json.dumps(manifest).encode(), "c.json": config(layers=(LOW,)), "d.json": config(layers=(TOP,))}
    saved = archive(tmp_path / "a.tar", old_archive(**files))
    assert contents(oci.open_archive(saved, "app:latest")) == {"low": b"low", "both": b"low"}
    assert contents(oci.open_archive(saved, "other:v2")) == {"both": b"top"}
    assert problem(saved) == (f"{saved} holds 2 images", "say which one: app:v1, other:v2")
    assert problem(saved, "app") == (f"{saved} has no image 'app'", "name one of these: app:v1, other:v2")


def test_one_of_several_images_of_a_layout_is_chosen_by_name_or_digest(tmp_path: Path) -> None:
    made = Layout()
    one, two = made.image(name="one"), made.image(name="two", layers=(TOP,))
    path = folder(tmp_path / "a", made.written(one, two))
    assert oci.open_archive(path, "two")[:2] == ("two", two["digest"])
    assert oci.open_archive(path, one["digest"]).digest == one["digest"]
    assert problem(path) == (f"{path} holds 2 images", "say which one: one, two")


def test_an_image_for_other_machines_is_refused(tmp_path: Path) -> None:
    fix = "build or save it for this machine; if the nodes are so: --platform linux/vax"
    saved = archive(tmp_path / "a.tar", old_archive(**{"c.json": config("vax")}))
    assert problem(saved) == (f"{saved} is for linux/vax, this machine is linux/{HERE}", fix)
    made = Layout()
    for path in (
        folder(tmp_path / "said", made.written(made.image("vax"))),
        folder(tmp_path / "unsaid", made.written(made.image("vax", platform=False))),
        folder(tmp_path / "nested", made.written(made.index(made.image("vax")))),
    ):
        assert problem(path) == (f"{path} is for linux/vax, this machine is linux/{HERE}", fix)
        assert oci.open_archive(path, wanted="vax").architecture == "vax"
        with pytest.raises(KitError, match=rf"{path} is for linux/vax, not for linux/pdp\n  fix: take one of these: --platform OS/ARCH"):
            oci.open_archive(path, wanted="pdp")
    of_nothing = archive(tmp_path / "b.tar", old_archive(**{"c.json": config("").replace(b'"linux"', b'""')}))
    assert oci.open_archive(of_nothing).config == CONFIG
    both = folder(tmp_path / "both", made.written(made.image(), made.image("vax", layers=(TOP,))))
    assert len(oci.open_archive(both).layers) == 2 and len(oci.open_archive(both, wanted="vax").layers) == 1


def test_what_is_no_image_archive_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    (tmp_path / "packed.tar.gz").write_bytes(gzip.compress(tar(old_archive())))
    (tmp_path / "folder").mkdir()
    archive(tmp_path / "other.tar", {"a": b"b"})
    for name in ("text", "packed.tar.gz", "folder", "other.tar", "missing"):
        said, fix = problem(tmp_path / name)
        assert said.startswith(f"{tmp_path / name} is not an image archive: ")
        assert fix == oci.NOT_AN_ARCHIVE


def test_what_an_archive_lacks_is_named(tmp_path: Path) -> None:
    files = old_archive()
    del files["bb/layer.tar"]
    saved = archive(tmp_path / "a.tar", files)
    assert problem(saved) == (f"{saved} lacks bb/layer.tar, which its manifest names: it was cut short, or saved in part", AGAIN)
    made = Layout()
    written = made.written(made.image())
    del written[f"blobs/sha256/{digest(TOP)[7:]}"]
    path = folder(tmp_path / "layout", written)
    assert problem(path)[0].startswith(f"{path} lacks blobs/sha256/{digest(TOP)[7:]}, ")


def test_a_file_outside_the_archive_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    for name in ("../secret", str(tmp_path / "secret")):
        manifest = json.dumps([{"Config": name, "Layers": []}]).encode()
        path = folder(tmp_path / "layout", {"manifest.json": manifest})
        assert problem(path)[0].startswith(f"{path} lacks {name}, ")


@pytest.mark.parametrize("manifest", [b"no json", b"[{}]", b"{}", b"[1]", b"null", bytes(range(128, 228))])
def test_a_damaged_manifest_is_said(manifest: bytes, tmp_path: Path) -> None:
    saved = archive(tmp_path / "a.tar", old_archive(**{"manifest.json": manifest}))
    assert str(saved) in problem(saved)[0]


def test_a_damaged_blob_is_named(tmp_path: Path) -> None:
    made = Layout()
    entry = made.image()
    name = f"blobs/sha256/{entry['digest'][7:]}"
    path = folder(tmp_path / "layout", {**made.written(entry), name: b"{}"})
    assert problem(path) == (f"{path}: {name} is damaged: its sha256 is not {entry['digest']}", AGAIN)
