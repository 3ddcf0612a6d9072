"""Mutants of our own source: where waiting is a decision of the core or of the reference chip's SDK, no adapter call.

Each changes one file, and one library is built again with it, beside the real one; then the programs that depend on the
changed lines are run with all their waits, and each of them must be wrong. Uses the build folder of `make build`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from torch_fl.profile import adapters

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "dev"
CORE, SDK = "csrc/core/libtorch_fl_core.so", "chips/ninguang/sdk/libninguang.so"
READERS = ("freed_while_another_stream_reads", "freed_while_several_streams_read", "key_value_cache",
           "empty_cache_while_another_stream_reads", "no_room_while_another_stream_reads",
           "freed_on_a_stream_that_only_copied", "grown_on_a_side_stream", "loader_prefetches_on_a_side_stream",
           "checkpoint_while_training")  # fmt: skip
PINNED = ("pinned_memory_freed_while_read", "pinned_memory_freed_while_written", "pinned_cache_emptied_while_busy")


@dataclass(frozen=True)
class SourceMutant:
    """`pattern` (a regular expression, found at least once) becomes `replacement`."""

    name: str
    library: str
    file: str
    pattern: str
    replacement: str
    programs: tuple[str, ...]


def _body(signature: str) -> str:
    """A function's signature up to its opening brace."""
    return rf"({signature}[^;{{]*\{{)"


SOURCE_MUTANTS = (
    SourceMutant("record_stream does nothing", CORE, "csrc/core/allocator.cpp",
                 _body(r"void CachingAllocator::record_stream\("), r"\1 return;", READERS),
    SourceMutant("host_record does nothing", CORE, "csrc/core/host_allocator.cpp",
                 _body(r"\nvoid host_record\("), r"\1 return;", PINNED),
    SourceMutant("a fence has always passed", CORE, "csrc/core/fence.cpp",
                 _body(r"bool Fence::passed\("), r"\1 recycle(stream); return true;",
                 ("freed_while_another_stream_reads", "key_value_cache", "pinned_memory_freed_while_read",
                  "pinned_memory_freed_while_written")),
    SourceMutant("nobody waits for a fence", CORE, "csrc/core/fence.cpp",
                 _body(r"void Fence::wait\("), r"\1 recycle(stream); return;",
                 ("empty_cache_while_another_stream_reads", "no_room_while_another_stream_reads",
                  "pinned_cache_emptied_while_busy")),
    SourceMutant("all streams take memory from one heap", CORE, "csrc/core/allocator.cpp",
                 r"heaps_\[(?:[a-z]+\.|[a-z]+->stream->)id\]", "heaps_[0]", ("freed_while_its_own_stream_writes",)),
    SourceMutant("threads share their current stream", CORE, "csrc/core/stream.cpp",
                 r"thread_local (Stream\* current_streams)", r"\1", ("two_threads_with_one_model",)),
    SourceMutant("a large pageable upload is not waited for", SDK, "chips/ninguang/sdk/src/copy.cpp",
                 r"(queue_copy\(stream, dst, src, bytes\);\n)\s*stream\.wait\(stream\.queued\(\)\);(\n  \}\n\})",
                 r"\1\2", ("upload_of_pageable_memory",)),
    SourceMutant("a staged upload reads its source late", SDK, "chips/ninguang/sdk/src/copy.cpp",
                 r"memcpy\(dst, staged\.get\(\), bytes\)", "memcpy(dst, src, bytes)", ("upload_of_pageable_memory",)),
    SourceMutant("a small upload reads its source late", SDK, "chips/ninguang/sdk/src/copy.cpp",
                 r"\[packed\](.*\n.*\n.*memcpy\(packed\.dst, )packed\.data", r"[packed, src]\1src",
                 ("upload_of_pageable_memory",)),
    SourceMutant("a small copy does not wait for a busy stream", SDK, "chips/ninguang/sdk/src/copy.cpp",
                 r"return stream\.run_if_idle\(\[&\] \{ (memcpy\(dst, src, bytes\);) \}\);", r"\1 return true;",
                 ("download_into_pageable_memory", "host_reads_of_busy_data")),
    SourceMutant("an event stands before the last command", SDK, "chips/ninguang/sdk/src/event.cpp",
                 r"mark\.number = on\.queued\(\);", "mark.number = on.queued() - 1;",
                 ("consume_after_event", "upload_of_pinned_memory", "download_into_pinned_memory")),
    SourceMutant("a command is done before it has run", SDK, "chips/ninguang/sdk/src/stream.cpp",
                 r"(const ngResult result = run\(slot\(number\)\);)", r"done_.store(number); \1",
                 ("consume_after_event", "download_into_pageable_memory", "diamond_of_streams")),
)  # fmt: skip


def _commands() -> list[dict[str, str]]:
    return json.loads(_ninja("compdb"))


def _ninja(*tool: str) -> str:
    ninja = shutil.which("ninja", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    assert ninja is not None, "ninja is missing: make build installs it"
    return subprocess.run([ninja, "-C", BUILD, "-t", *tool], capture_output=True, text=True, check=True).stdout


def build(mutant: SourceMutant, folder: Path) -> dict[str, str]:
    """Builds the mutant's library into a folder. Returns the environment in which a process uses it.

    Raises:
        RuntimeError: the pattern is not in the file any more, or the mutant does not compile.
    """
    source = ROOT / mutant.file
    text, count = re.subn(mutant.pattern, mutant.replacement, source.read_text())
    if count == 0:
        raise RuntimeError(f"mutant {mutant.name!r}: {mutant.file} has changed, nothing matches {mutant.pattern!r}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    changed, built, library = folder / source.name, folder / "mutant.o", folder / Path(mutant.library).name
    changed.write_text(text)
    (compile_one,) = [c for c in _commands() if Path(c["file"]) == source and c["output"].endswith(".cpp.o")]
    command = compile_one["command"].replace(f" {source}", f" -iquote {source.parent} {changed}")
    _shell(command.replace(compile_one["output"], str(built)), mutant)
    link = _ninja("commands", mutant.library).rstrip().splitlines()[-1]
    assert compile_one["output"] in link and f"-o {mutant.library}" in link, link
    _shell(link.replace(compile_one["output"], str(built)).replace(f"-o {mutant.library}", f"-o {library}"), mutant)
    if mutant.library == CORE:
        return {"LD_LIBRARY_PATH": str(folder)}
    adapter = adapters.find("ninguang").library
    shutil.copy(adapter, folder)
    return {"LITMUS_ADAPTER": str(folder / adapter.name)}


def _shell(command: str, mutant: SourceMutant) -> None:
    done = subprocess.run(command, shell=True, cwd=BUILD, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"mutant {mutant.name!r} does not build:\n{done.stdout}{done.stderr}")


def outcomes(mutant: SourceMutant, folder: Path) -> dict[str, str | None]:
    """Builds a mutant and runs its programs. Returns, by program, how it was caught; None: it was not."""
    environment = {**os.environ, **build(mutant, folder)}
    script = [sys.executable, str(Path(__file__).parent / "mutate.py"), "--as-built", str(folder), *mutant.programs]
    done = subprocess.run(script, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
