"""The delivery book: facts are added and never rewritten, half a line is no fact."""

import threading

from rcray.track.book import Book, Server
from tests.track.stored_runs import four_cells, make_cell

URI = "http://127.0.0.1:5000"


def opened(store, cells):
    book = Book(store, "small")
    book.enter(cells, "A title", URI)
    return book


def test_lines_are_added_and_nothing_is_written_twice(empty_store):
    cells = four_cells()
    book = opened(empty_store, cells)
    before = book.path.read_bytes()
    book.enter(cells, "A title", URI)
    book.save_server(URI, "1", "parent")
    book.save_server(URI, "1", "parent")
    for cell in cells:
        book.save_run(URI, cell.run_id, f"id of {cell.run_id}")
    after = book.path.read_bytes()
    assert after.startswith(before), "what was there is not touched"
    assert after[len(before) :].count(b"\n") == 1 + len(cells)
    for reader in (book, Book(empty_store, "small")):
        assert reader.cells() == cells and (reader.title, reader.uri) == ("A title", URI)
        assert reader.server(URI) == Server("1", "parent", {cell.run_id: f"id of {cell.run_id}" for cell in cells})
        assert reader.server("http://elsewhere") == Server()


def test_another_database_at_the_same_address_knows_no_run(empty_store):
    book = opened(empty_store, [make_cell()])
    book.save_server(URI, "1", "parent")
    book.save_run(URI, "a", "x")
    book.save_server(URI, "1", "another parent")
    assert book.server(URI) == Server("1", "another parent", {"a": "x"})
    book.save_server(URI, "2", "")
    assert Book(empty_store, "small").server(URI) == book.server(URI) == Server("2")


def test_half_a_line_of_a_killed_process_is_cut_off(empty_store, caplog):
    first, second = four_cells()[:2]
    book = opened(empty_store, [first])
    whole = book.path.read_bytes()
    book.path.write_bytes(whole + b'{"cell": {"run_id": "abc')
    reader = Book(empty_store, "small")
    assert reader.cells() == [first], "nobody knows yet whether the rest comes"
    reader.enter([second], "A title", None)
    assert book.path.read_bytes().startswith(whole + b'{"cell"') and b"abc" not in book.path.read_bytes()
    assert book.cells() == Book(empty_store, "small").cells() == [first, second]
    assert caplog.text == ""


def test_damage_is_set_aside(empty_store, caplog):
    cells = four_cells()
    book = opened(empty_store, cells)
    lines = book.path.read_bytes().splitlines(keepends=True)
    book.path.write_bytes(b"".join([*lines[:2], b"\x00\xff\n", *lines[2:]]))
    assert Book(empty_store, "small").cells() == []
    assert book.path.with_name("tracking.jsonl.damaged-1").exists() and "tracking.jsonl is damaged" in caplog.text
    book.enter(cells, "A title", URI)
    assert book.cells() == cells


def test_writers_at_once_lose_nothing(empty_store):
    cells = four_cells()

    def write(cell):
        book = Book(empty_store, "small")
        book.enter([cell], "A title", URI)
        for i in range(20):
            book.save_run(URI, f"{cell.run_id}-{i}", str(i))

    threads = [threading.Thread(target=write, args=(cell,)) for cell in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    book = Book(empty_store, "small")
    assert sorted(cell.run_id for cell in book.cells()) == sorted(cell.run_id for cell in cells)
    assert len(book.server(URI).runs) == 80
