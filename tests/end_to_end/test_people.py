"""People of `rota load` on the real server: who goes on with a conversation, and who closes the page."""

from loadgen.figures import Load
from loadgen.measure import play
from loadgen.progress import Nothing
from loadgen.scene import Scene
from protocol.people import Person, Question
from tests.end_to_end.server import Server


async def test_conversations_go_on_over_sockets_and_pages_that_are_closed_free_the_server(server: Server) -> None:
    talk = (Question(60, 8), Question(40, 8, 0.05))
    people = (
        Person("stays", talk),
        Person("reconnects", talk, reconnects=True),
        Person("shares", talk, client="c"),
        Person("shares too", talk, client="c"),
        Person("leaves", (Question(60, 2000), *talk), leaves_after_chunks=3),
        Person("comes back", (Question(60, 40),), leaves_after_chunks=3, comes_back_s=0.1),
        Person("reads slowly", (Question(60, 20),), reads_chunks_per_s=200.0),
    )
    load = Load(
        url=server.url,
        model=server.model,
        sockets=len(people),
        requests_per_socket=0,
        max_output_tokens=2000,
        ignore_eos=True,
        temperature=0.0,
        prompt_tokens=None,
        warmup=1,
        seed=3,
        timeout_s=120.0,
        idle=5,
    )
    before = await server.metrics()
    report, exchanges = await play(load, Scene(people=people, name="talk"), None, Nothing())
    after = await server.empty()
    assert report.stopped_by == "finished"
    assert (report.requests.finished, report.requests.left, report.idle_sockets) == (10, 4, 5), report.requests
    cancelled = [each.value("rota_requests_finished_total", reason="cancelled") for each in (before, after)]
    assert cancelled[1] - cancelled[0] == 2, "a closed page is a cancel to the server"
    for name in ("stays", "reconnects", "shares", "shares too"):
        first, second = (exchange for exchange in exchanges if exchange.person == name)
        assert first.input_tokens is not None
        assert second.input_tokens is not None
        assert second.input_tokens > first.input_tokens + 8, "what was said before is part of it"
        assert second.cached_tokens, "and is found again"
