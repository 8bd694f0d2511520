"""The queue of waiting requests: clients take turns, and each client's requests are served in order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from chainrule.serving.requests import Ticket


class FairQueue:
    """First come, first served within a client; between clients one request each in turn.

    A client with a thousand waiting requests delays another one by one request, not by a thousand.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Ticket]:
        for tickets in self._waiting.values():
            yield from tickets

    def put(self, ticket: Ticket) -> None:
        self._waiting.setdefault(ticket.request.client, deque()).append(ticket)
        self._count += 1

    def take(self) -> Ticket:
        """The next request; its client goes to the end of the line."""
        client, tickets = next(iter(self._waiting.items()))
        ticket = tickets.popleft()
        self._count -= 1
        del self._waiting[client]
        if tickets:
            self._waiting[client] = tickets
        return ticket

    def remove(self, condition: Callable[[Ticket], bool]) -> list[Ticket]:
        """Take out the requests that meet a condition."""
        removed = [ticket for ticket in self if condition(ticket)]
        gone = set(map(id, removed))
        for client in list(self._waiting):
            self._waiting[client] = deque(one for one in self._waiting[client] if id(one) not in gone)
            if not self._waiting[client]:
                del self._waiting[client]
        self._count -= len(removed)
        return removed
