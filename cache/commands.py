"""The commands `adaptive-eager cache ...`. Each imports what it needs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from adaptive_eager.cache.wording import UNITS, age, milliseconds, shortened, size, table, when

if TYPE_CHECKING:
    from adaptive_eager.cache.layer import Layer
    from adaptive_eager.cache.listing import Listed

T = TypeVar("T")


class _Bytes(click.ParamType):
    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from adaptive_eager.params import parse_bytes

        try:
            number = value if isinstance(value, int) else parse_bytes(value)
        except (ValueError, IndexError):
            number = -1
        return number if number >= 0 else self.fail(f"{value!r} is no size such as 500000, 64M or 2G", param, ctx)


class _Age(click.ParamType):
    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", str(value))
        if match is None:
            self.fail(f"{value!r} is no time such as 90m, 12h, 30d or 8w", param, ctx)
        return float(match[1]) * UNITS[match[2]]


@click.group()
def cache() -> None:
    """Look at and look after the kernel cache.

    The cache is where ADAPTIVE_EAGER_CACHE_DIR says, or in the user's cache folder. Kernels and plans in it are shared
    by all processes of the user; any of them can be removed at any time, at the cost of a compilation.

    Exit codes: 0 all is well; 1 something is wrong or was not found; 2 the command was not understood.
    """


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def stats(as_json: bool) -> None:
    """Entries, bytes, hit rates and compile seconds saved, by directory.

    Processes note what they found when they end, so those that run or were killed are not counted. A hit rate is the
    share of needed entries that were found and not made.
    """
    from adaptive_eager.cache.usage import usage

    with _trouble():
        document = usage(_layers())
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    for layer in document["layers"]:
        click.echo(layer["directory"])
        kinds = layer["entries"]
        click.echo(f"  entries  {', '.join(f'{n:,} {kind}s' for kind, n in sorted(kinds.items())) or 'none'}")
        if layer["of_other_versions"]:
            click.echo(f"           {layer['of_other_versions']:,} of them of other versions or machines")
        click.echo(f"  size     {size(layer['bytes'])}")
        click.echo(f"  found    {', '.join(f'{n:,} {kind}s' for kind, n in layer['hits'].items()) or 'nothing yet'}")
        click.echo(f"  saved    {layer['compile_seconds_saved']:,.1f} s of compiling")
    click.echo(f"made       {', '.join(f'{n:,} {kind}s' for kind, n in document['made'].items()) or 'nothing yet'}")
    click.echo(f"compiling  {document['compile_seconds']:,.1f} s")
    rates = ", ".join(f"{rate:.1%} of {kind}s" for kind, rate in document["hit_rate"].items())
    click.echo(f"hit rate   {rates or 'nothing needed yet'}")


@cache.command()
@click.option("--kind", type=click.Choice(["kernel", "plan", "failure", "host"]), help="Only these entries.")
@click.option(
    "--sort", type=click.Choice(["used", "made", "size", "seconds"]), default="used", show_default=True,
    help="Order, largest or latest last.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="A list for scripts, with everything in full.")
def ls(kind: str | None, sort: str, as_json: bool) -> None:
    """List entries: key, what they compute, size, compile time, age, last use.

    The last column names the fields of the key in which an entry is of another version or machine; where it is empty,
    programs use the entry.
    """
    from adaptive_eager.cache.listing import ops
    from adaptive_eager.cache.verification import differing

    with _trouble():
        documents: list[dict[str, Any]] = [
            {
                "key": item.entry.key, "kind": item.entry.kind, "directory": str(item.layer.directory),
                "ops": ops(item.entry), "size": len(item.blob), "seconds": item.entry.seconds,
                "made": item.entry.made, "used": item.used, "differs": differing(item.entry),
            }
            for item in _listed(_layers())
            if kind in (None, item.entry.kind)
        ]  # fmt: skip
    documents.sort(key=lambda document: document[sort])
    if as_json:
        click.echo(json.dumps(documents, indent=1))
        return
    now = time.time()
    rows = [
        (
            document["key"][:12], document["kind"], size(document["size"]), milliseconds(document["seconds"]),
            age(now - document["made"]), age(now - document["used"]), shortened(document["ops"]),
            ", ".join(document["differs"]),
        )
        for document in documents
    ]  # fmt: skip
    table(("key", "kind", "size", "took", "age", "last use", "computes", "other"), rows)


@cache.command()
@click.argument("key")
@click.option("--llvm/--no-llvm", default=True, help="Whether a kernel's LLVM IR is written anew from its loop IR.")
def show(key: str, llvm: bool) -> None:
    """Show an entry: the fields of its KEY (or of one that starts so), its loop IR and its LLVM IR.

    KIND:KEY is understood too, for a key of several kinds.
    """
    from adaptive_eager.cache.listing import document_of, ops
    from adaptive_eager.cache.verification import differing

    with _trouble():
        found: dict[str, Listed] = {}
        for item in _listed(_layers(code=1)):
            if item.entry.key.startswith(key) or item.entry.name == key:
                found.setdefault(item.entry.name, item)  # of several directories, programs use the first one's
    if not found:
        raise click.ClickException(f"no entry whose key starts with {key!r}; `adaptive-eager cache ls` lists all")
    if len(found) > 1:
        raise click.ClickException(f"{len(found)} entries have keys that start with {key!r}: {', '.join(found)}")
    (item,) = found.values()
    entry = item.entry
    click.echo(f"{entry.kind} {entry.key}")
    click.echo(f"in {item.layer.directory}, {size(len(item.blob))}, payload {size(len(entry.payload))}")
    click.echo(f"made {when(entry.made)} in {milliseconds(entry.seconds)}, last use {when(item.used)}")
    other = differing(entry)
    click.echo("used by this version on this machine" if not other else f"not used here: other {', '.join(other)}")
    click.echo("\nfields of the key")
    for name, value in entry.fields.items():
        if name != "text" or entry.kind != "kernel":
            click.echo(f"  {name:<20} {value}")
    if entry.kind == "kernel":
        click.echo(f"\nops\n  {', '.join(ops(entry))}")
        click.echo(f"\nloop IR\n{entry.fields.get('text', '')}")
        if llvm:
            click.echo(f"\nLLVM IR\n{_llvm_ir(entry.fields)}")
    elif entry.kind == "plan":
        click.echo("\nsteps")
        for number, step in enumerate(ops(entry)):
            click.echo(f"  {number:3} {step}")
    elif entry.kind == "host":
        click.echo("\nLLVM's words")
        for name, value in document_of(entry).items():
            click.echo(f"  {name:<20} {value}")
    else:
        click.echo(f"\nreason\n  {document_of(entry).get('reason', '')}")


def _llvm_ir(fields: dict[str, str]) -> str:
    from adaptive_eager.cache.verification import current
    from adaptive_eager.compiler.codegen import emit_ir
    from adaptive_eager.compiler.loop_text import parse
    from adaptive_eager.compiler.target import Target

    if fields.get("generator") != current()["generator"]:
        return "; not known: the kernel was made by another version of the package"
    return emit_ir(parse(fields["text"]), Target.from_key(fields["target"]))


@cache.command()
def verify() -> None:
    """Compile every kernel again and compare the bytes; look whether plans have their kernels.

    Kernels of other versions of the package, LLVM or torch cannot be compared and are skipped. Exit code 1 when an
    entry is damaged or a kernel differs: then `adaptive-eager cache clear`, and please report it.
    """
    from adaptive_eager.cache.listing import listed
    from adaptive_eager.cache.verification import verify as verify_one

    bad: list[str] = []
    counts: Counter[tuple[str, str]] = Counter()
    with _trouble():
        layers = _layers()
        names = [name for layer in layers for name in layer.names()]
        items = (item for layer in layers for item in listed(layer, bad))
        for item in _track(items, "compiling", len(names)):
            verdict = verify_one(item.entry, set(names))
            counts[verdict.state, verdict.why if verdict.state == "skipped" else ""] += 1
            if verdict.state == "wrong":
                click.echo(f"wrong    {item.entry.name}: {verdict.why}")
    for name in bad:
        click.echo(f"damaged  {name}")
    wrong = counts["wrong", ""]
    click.echo(f"{counts['same', '']:,} entries are right, {wrong} are wrong, {len(bad)} are damaged")
    for (state, why), number in sorted(counts.items()):
        if state == "skipped":
            click.echo(f"{number:,} skipped: {why}")
    sys.exit(1 if wrong or bad else 0)


@cache.command()
@click.option("--max-size", type=_Bytes(), help="Drop the entries that were not used for longest, down to this size.")
@click.option("--max-age", type=_Age(), help="Drop entries that were not used for so long, such as 12h or 30d.")
@click.option("--other-versions", is_flag=True, help="Drop entries that no program here uses: of other versions.")
def prune(max_size: int | None, max_age: float | None, other_versions: bool) -> None:
    """Drop entries, and tidy up after processes that were killed.

    Without options only the tidying is done: leases that nobody holds, and damaged files that were put aside.
    """
    from adaptive_eager.cache.locks import remove_stale
    from adaptive_eager.cache.verification import differing

    with _trouble():
        (layer,) = _layers(writable=True)
        before, entries = layer.volume(), len(layer.names())
        now = time.time()
        for item in list(_listed([layer])) if max_age is not None or other_versions else ():
            old = max_age is not None and now - item.used > max_age
            if old or (other_versions and differing(item.entry)):
                layer.remove(item.entry.name)
        if max_size is not None and before > max_size:
            layer.shrink(max_size)
        stale, broken = remove_stale(layer), _remove_broken(layer)
        left = len(layer.names())
        click.echo(f"dropped {entries - left:,} of {entries:,} entries; {size(before)} -> {size(layer.volume())}")
        if stale or broken:
            click.echo(f"removed {stale} stale leases and {broken} damaged files")
        layer.close()


def _remove_broken(layer: Layer) -> int:
    removed = 0
    with contextlib.suppress(OSError):
        for path in (layer.folder / "broken").iterdir():
            path.unlink()
            removed += 1
    return removed


@cache.command()
@click.confirmation_option("--yes", prompt="Drop all entries of the kernel cache?", help="Do not ask.")
def clear() -> None:
    """Drop all entries of the directory that is written to. Programs that run go on."""
    with _trouble():
        (layer,) = _layers(writable=True)
        entries = len(layer.names())
        if entries:
            layer.clear()
        layer.close()
    click.echo(f"dropped {entries:,} entries")


@cache.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--usable", is_flag=True, help="Only what this version of the package on this kind of CPU uses.")
def export_(file: Path, usable: bool) -> None:
    """Write all kernels and plans to FILE, for `import` on another machine or in an image."""
    from adaptive_eager.cache import archive
    from adaptive_eager.cache.verification import differing

    def blobs(layers: list[Layer]) -> Iterator[bytes]:
        names: set[str] = set()
        for item in _track(_listed(layers), "writing", sum(len(layer.names()) for layer in layers)):
            entry = item.entry
            if entry.kind != "failure" and entry.name not in names and not (usable and differing(entry)):
                names.add(entry.name)
                yield item.blob

    with _trouble():
        count = archive.write(file, blobs(_layers(code=1)))
        click.echo(f"{count:,} entries, {size(file.stat().st_size)}: {file}")


@cache.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_(file: Path) -> None:
    """Put the entries of FILE, which `export` wrote, into the cache.

    Their code will run in your programs: import only files of people who may run code as you. A file that others can
    write to, that is damaged or cut short is refused as a whole.
    """
    from adaptive_eager.cache import archive
    from adaptive_eager.cache.store import KINDS
    from adaptive_eager.cache.verification import differing

    with _trouble():
        opened = archive.Archive(file)
        try:
            (layer,) = _layers(writable=True)
            there, count, new, unused = set(layer.names()), 0, 0, 0
            for entry, blob in _track(opened, "reading", opened.count):
                if entry.kind not in KINDS:
                    continue
                count += 1
                if entry.name not in there or layer.read(entry.name) is None:  # or what is there is damaged
                    layer.write(entry.name, blob)
                    new += 1
                unused += bool(differing(entry))
            layer.close()
        finally:
            opened.close()
    click.echo(f"{count:,} entries, {new:,} of them new: {layer.directory}")
    if unused:
        click.echo(f"{unused:,} are of another version or another kind of CPU, and not used here")


@cache.command()
def doctor() -> None:
    """Look at permissions, file system, free space, the database, and locks with the processes that hold them.

    Exit code 1 when something is wrong.
    """
    from adaptive_eager import params
    from adaptive_eager.cache.examination import examine
    from adaptive_eager.doctor import show as show_findings

    findings = list(examine(_layers(missing=True), params.get("cache_size")))
    sys.exit(0 if show_findings(findings) else 1)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _layers(writable: bool = False, missing: bool = False, code: int = 0) -> list[Layer]:
    """The directories of the cache for looking, without those that are not there (unless `missing`); or the first, for
    writing to it. Ends the command with exit code `code` if there is none."""
    from adaptive_eager import params
    from adaptive_eager.cache.layer import Layer

    paths = [Path(path) for path in params.get("cache_dir").split(os.pathsep)]
    if writable:
        return [Layer(paths[0], True, params.get("cache_size"))]
    layers = [Layer(path, False, 0) for path in paths]
    there = [layer for layer in layers if missing or (layer.folder / "cache.db").exists()]
    for layer in layers:
        if layer not in there:
            click.echo(f"there is no cache in {layer.directory}", err=True)
    if not there:
        sys.exit(code)
    return there


def _listed(layers: list[Layer]) -> Iterator[Listed]:
    from adaptive_eager.cache.listing import listed

    for layer in layers:
        bad: list[str] = []
        yield from listed(layer, bad)
        if bad:
            click.echo(f"{len(bad)} damaged entries in {layer.directory}; `verify` names them", err=True)


@contextlib.contextmanager
def _trouble() -> Iterator[None]:
    """What a cache can suffer from, in one line and exit code 1."""
    from adaptive_eager.cache.archive import ArchiveError

    try:
        yield
    except (OSError, sqlite3.Error, ArchiveError) as error:
        raise click.ClickException(f"{type(error).__name__}: {error}") from None


def _track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Progress on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, what, total=total, console=console, transient=True, disable=not console.is_terminal)
