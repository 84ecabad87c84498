from actors.directory import Directory
from protocol.messages import Drain, Started
from tests.actors.recorders import Recorder


def test_numbers_are_never_used_twice() -> None:
    directory = Directory()
    first = directory.next_id()
    directory.add(Recorder().address, first)
    directory.remove(first)
    assert directory.next_id() != first


def test_a_message_reaches_the_connection_of_that_number_and_no_other() -> None:
    directory = Directory()
    one, other = Recorder(), Recorder()
    directory.add(one.address, 1)
    directory.add(other.address, 2)
    directory.tell(1, Started("r", 0.0))
    assert one.heard == [Started("r", 0.0)]
    assert other.heard == []


def test_a_message_to_a_connection_that_is_gone_reaches_nobody() -> None:
    directory = Directory()
    gone = Recorder()
    directory.add(gone.address, 1)
    directory.remove(1)
    directory.remove(1)
    directory.tell(1, Started("r", 0.0))
    directory.tell(7, Started("r", 0.0))
    assert gone.heard == []
    assert len(directory) == 0


def test_everyone_can_be_told() -> None:
    directory = Directory()
    boxes = [Recorder(), Recorder()]
    for number, box in enumerate(boxes):
        directory.add(box.address, number)
    directory.tell_all(Drain(5.0))
    assert [box.heard for box in boxes] == [[Drain(5.0)], [Drain(5.0)]]
    assert len(directory) == 2
