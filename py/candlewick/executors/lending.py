"""Files that JavaScript reads for Python: sources of files.js as they are, and sources that only Python has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class PythonSource:
    """A ByteSource that only Python has, as JavaScript wants its sources: name, readInto(view, start) -> bytes read."""

    def __init__(self, name: str, source: Any) -> None:
        self.name, self._source = name, source
        self.failure: Exception | None = None

    async def readInto(self, view: Any, start: int) -> int:
        """Fills a view of JavaScript's memory with the bytes from `start`."""
        try:
            data = await self._source.read(start, start + view.length)
        except Exception as error:
            self.failure = error
            raise
        view.assign(data)
        return len(data)


@contextmanager
def lent(js: Any, sources: Mapping[str, Any]) -> Iterator[None]:
    """js: a host of JavaScript with addSource and clearSources. What a source made in Python raises is raised here too."""
    made = {name: PythonSource(name, source) for name, source in sources.items() if not hasattr(source, "js")}
    proxies = {name: _proxy(source) for name, source in made.items()}
    try:
        for name, source in sources.items():
            js.addSource(name, proxies[name] if name in proxies else source.js)
        yield
    except Exception:
        for source in made.values():
            if source.failure:  # what a source raised, before JavaScript wrapped it
                raise source.failure from None
        raise
    finally:
        js.clearSources()
        for proxy in proxies.values():
            proxy.destroy()


def _proxy(thing: Any) -> Any:
    from pyodide.ffi import create_proxy  # there is no such module in CPython

    return create_proxy(thing)
