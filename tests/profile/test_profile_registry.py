"""Registered profiles: one per name, atomic, by many processes at once, and never lost to a full disk."""

import contextlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys

import pytest

from torch_fl._errors import ProfileError
from torch_fl.profile import registry
from torch_fl.profile.loader import InvalidProfile

fork = multiprocessing.get_context("fork")


def run_all(function, arguments):
    """Run function(argument) in one process each, all at once; returns their exit codes."""
    processes = [fork.Process(target=function, args=argument) for argument in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


def test_register_list_unregister(profile_file, home):
    entry = registry.register(profile_file("acme", arch="a1"))
    assert entry.path == home / "profiles" / "acme.json"
    registry.register(profile_file("bolt"))
    assert [e.name for e in registry.registered()] == ["acme", "bolt"]
    assert registry.find("acme").profile.arch == "a1"
    registry.unregister("acme")
    assert [e.name for e in registry.registered()] == ["bolt"]
    with pytest.raises(registry.NotRegistered, match="registered: bolt"):
        registry.unregister("acme")
    with pytest.raises(registry.NotRegistered):
        registry.unregister("../../etc/passwd")


def test_the_adapter_beside_the_profile_becomes_absolute(profile_file):
    path = profile_file("acme", adapter="libfl_acme.so")
    assert registry.register(path).profile.adapter == str(path.parent / "libfl_acme.so")
    assert registry.find("acme").profile.adapter == str(path.parent / "libfl_acme.so")


def test_an_adapter_that_is_not_beside_stays_a_name(profile_file):
    assert registry.register(profile_file("acme", library=False, adapter="ninguang")).profile.adapter == "ninguang"


def test_the_printed_form_survives_registration(tmp_path, printed):
    from torch_fl.profile.loader import load

    path = tmp_path / "chip_profile.json"
    path.write_text(printed)
    assert load(registry.register(path).path) == load(path)


def test_two_profiles_of_one_name(profile_file, tmp_path):
    first = profile_file("acme", library=False, adapter="ninguang", arch="one")
    registry.register(first)
    assert registry.register(first).profile.arch == "one"  # the same content again
    second = profile_file("acme", library=False, folder=tmp_path / "other", adapter="ninguang", arch="two")
    with pytest.raises(registry.AlreadyRegistered) as caught:
        registry.register(second)
    assert "(of arch)" in str(caught.value) and "--force" in str(caught.value) and str(second) in str(caught.value)
    assert registry.find("acme").profile.arch == "one"
    assert registry.register(second, force=True).profile.arch == "two"
    assert registry.find("acme").profile.arch == "two"


def test_an_invalid_profile_is_not_registered(profile_file):
    with pytest.raises(InvalidProfile):
        registry.register(profile_file("acme", arch=3))
    assert registry.registered() == []


def test_broken_files_are_listed_with_their_reason(home, profile_file):
    registry.register(profile_file("good"))
    folder = home / "profiles"
    (folder / "bad.json").write_text("{")
    (folder / "renamed.json").write_text('{"device_name": "other"}')
    (folder / "directory.json").mkdir()
    (folder / ".hidden.json").write_text("{")
    (folder / "notes.txt").write_text("{")
    entries = {entry.name: entry for entry in registry.registered()}
    assert set(entries) == {"good", "bad", "renamed", "directory"}
    assert entries["good"].error is None
    assert "bad.json:1" in entries["bad"].error and 'device_name is "other"' in entries["renamed"].error
    assert "directory" in entries["directory"].error
    # A broken one is replaced only on request, and can be removed.
    with pytest.raises(registry.AlreadyRegistered, match="not valid"):
        registry.register(profile_file("bad"))
    assert registry.register(profile_file("bad"), force=True).error is None
    registry.unregister("renamed")


def register_many(own, shared, rounds):
    for _ in range(rounds):
        registry.register(own)
        registry.register(shared)
        registry.registered()


def test_eight_processes_register_at_once(profile_file):
    shared = profile_file("shared")
    own = [profile_file(f"chip{i}") for i in range(8)]
    assert run_all(register_many, [(path, shared, 20) for path in own]) == [0] * 8
    entries = registry.registered()
    assert sorted(entry.name for entry in entries) == sorted([*(f"chip{i}" for i in range(8)), "shared"])
    assert all(entry.error is None for entry in entries)
    assert not list(registry.folder().glob(".*.tmp"))


def register_variant(path, _):
    try:
        registry.register(path)
    except registry.AlreadyRegistered:
        os._exit(7)


def test_of_eight_different_profiles_of_one_name_exactly_one_wins(profile_file, tmp_path):
    paths = [profile_file("acme", folder=tmp_path / str(i), arch=f"arch{i}") for i in range(8)]
    codes = run_all(register_variant, [(path, None) for path in paths])
    assert sorted(codes) == [0] + [7] * 7
    assert registry.find("acme").profile.arch == f"arch{codes.index(0)}"


def flip(path_a, path_b, rounds):
    for _ in range(rounds):
        registry.register(path_a, force=True)
        registry.register(path_b, force=True)


def test_a_reader_never_sees_a_part_of_a_file(profile_file, tmp_path):
    operators = [{"op": name} for name in ("add", "mul", "sub", "div", "mm")] * 20
    small = profile_file("acme", folder=tmp_path / "a")
    large = profile_file("acme", folder=tmp_path / "b", native_ops=operators)
    registry.register(small)
    writer = fork.Process(target=flip, args=(small, large, 15))
    writer.start()
    seen = set()
    while writer.is_alive():
        entry = registry.find("acme")
        assert entry is not None and entry.error is None
        seen.add(entry.profile.native_ops is None)
    writer.join()
    assert writer.exitcode == 0
    assert seen == {True, False}


def test_what_a_killed_writer_left_behind_is_cleaned_up(home, profile_file):
    folder = home / "profiles"
    folder.mkdir(parents=True)
    (folder / ".acme.json.123.abcd.tmp").write_text('{"device_na')
    assert registry.registered() == []
    registry.register(profile_file("acme"))
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "acme.json"]


def register_with_small_files(path, home):
    # Python ignores SIGXFSZ, so a write past the limit is an OSError, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
    try:
        registry.register(path, force=True)
    except ProfileError as error:
        os._exit(5 if "cannot register" in str(error) and "TORCH_FL_HOME" in str(error) else 6)


def test_a_file_that_cannot_be_written_leaves_the_old_one(profile_file, tmp_path, home):
    registry.register(profile_file("acme", arch="old"))
    new = profile_file("acme", folder=tmp_path / "new", arch="n" * 200)
    assert run_all(register_with_small_files, [(new, home)]) == [5]
    assert registry.find("acme").profile.arch == "old"
    assert sorted(path.name for path in registry.folder().iterdir()) == [".lock", "acme.json"]


@pytest.fixture
def tiny_disk(tmp_path):
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(profile_file, tiny_disk, monkeypatch):
    monkeypatch.setenv("TORCH_FL_HOME", str(tiny_disk / "home"))
    registry.register(profile_file("acme", arch="old"))
    with contextlib.suppress(OSError), open(tiny_disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 1024)
    with pytest.raises(ProfileError, match="No space left"):
        registry.register(profile_file("acme", folder=tiny_disk.parent / "b", arch="n" * 200), force=True)
    assert registry.find("acme").profile.arch == "old"


def test_a_home_that_is_a_file(home, profile_file):
    home.write_text("")
    with pytest.raises(ProfileError, match="cannot register .*TORCH_FL_HOME"):
        registry.register(profile_file("acme"))
    with pytest.raises(ProfileError, match="Not a directory"):
        registry.registered()


def as_nobody(path, results):
    os.setgid(65534)
    os.setuid(65534)
    try:
        registry.register(path)
    except ProfileError as error:
        results.put(str(error))
    try:
        registry.registered()
    except ProfileError as error:
        results.put(str(error))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_folders_of_another_user(home, profile_file, monkeypatch):
    path = profile_file("acme")
    (home / "profiles").mkdir(parents=True)
    home.chmod(0o700)
    for parent in path.parents:  # the profile itself is readable
        if parent.owner() == "root" and str(parent).startswith("/tmp/pytest"):
            parent.chmod(0o755)
    results = fork.Queue()
    assert run_all(as_nobody, [(path, results)]) == [0]
    assert "Permission denied" in results.get(timeout=5)
    assert "Permission denied" in results.get(timeout=5)


def test_a_write_is_readable_by_others_as_the_umask_says(profile_file):
    before = os.umask(0o022)
    try:
        assert registry.register(profile_file("acme")).path.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_registered_text_is_json_without_defaults(profile_file):
    data = json.loads(registry.register(profile_file("acme", arch="x", sync_primitive="event")).path.read_text())
    assert set(data) == {"device_name", "arch", "adapter"}


def test_importing_profiles_is_lean():
    code = ("import sys; before = set(sys.modules)\n"
            "sys.modules['torch_fl'] = type(sys)('torch_fl'); sys.modules['torch_fl'].__path__ = ['torch_fl']\n"
            "import torch_fl.profile, torch_fl._env, torch_fl._errors, time\n"
            "assert 'msgspec' not in sys.modules, 'even msgspec waits'\n"
            "t = time.process_time(); from torch_fl.profile import adapters, config, registry\n"
            "print(time.process_time() - t)\n"  # processor time: the wall clock of a busy machine says nothing
            "loaded = set(sys.modules) - before\n"
            "bad = {'torch', 'typer', 'rich', 'yaml', 'click'} & {name.split('.')[0] for name in loaded}\n"
            "assert not bad, bad\n")
    root = registry.__file__.rsplit("/torch_fl/", 1)[0]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 0.15
