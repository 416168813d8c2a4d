"""Conversations: what follows each answer, and when it is sent. Knows no router and no scheduler.

In a closed loop of single requests, each is a conversation of one turn; so are single requests beside conversations.
There may be several closed loops, each with clients of its own, beside arrivals at given times.

An agent's task is a conversation whose requests, its calls, form a graph instead of a sequence of turns: a call is sent
when all its parents are answered and its tool has run.

A failed turn counts as answered: what follows is sent all the same, and may fail in its turn.

A task may have a time limit. At its deadline the client hangs up the running calls; a call due to be sent then or later
is never sent: it ends at the deadline, and so does whatever waits for it.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from math import inf

from simserve.engine.slots import slotted

NOTHING = -1
NOBODY = -1
"""In `Conversations.loop`: a conversation begins at a given time, not when a client is free."""


@slotted
class Conversations:
    """The conversations of a run, open or in a closed loop.

    The requests of one turn of one conversation are a group: they are sent together. Groups of a conversation are
    consecutive; so are the conversations of a closed loop. A task has one group of the calls without parents, and one
    of all others, if there are any.

    Attributes:
        group: Group of each request, shape [N] like all columns of requests.
        edges: Group g holds the requests ``edges[g] .. edges[g + 1] - 1``, shape [groups + 1].
        unanswered: For each group, requests that have not ended; for tasks, the first group counts all of its calls.
        begins: 1 if a group is the first of its conversation, and after the last group.
        num_groups: How many there are.
        loop: For each group, the closed loop whose clients hold its conversation, -1: none. A client that finishes one
            conversation begins another.
        next_group: For each closed loop, where the search for a conversation that has not begun continues.
        end_group: For each closed loop, the group after its last.
        closes_at: Closed loops: when clients stop, seconds; no conversation begins then or later.
        num_begun: Requests of the conversations that have begun in closed loops, and of all others.
        num_idle: Closed loops: clients that begin no further conversation.
        think_time: From the answer to the previous turn to the sending of each request, seconds.
        arrival_time: When each was sent, seconds; filled as they are. Before that, for a turn that follows another, the
            earliest possible time, NaN: at once.
        last_answer: For each group, the latest answer that its client has heard so far, seconds: to a request of the
            turn, or to a call of the task (for tasks, in the first group).
        is_graph: Whether they are tasks, so that the next three are filled.
        children: The calls that wait for each call, one list after another.
        child_edges: Call i has the entries ``child_edges[i] .. child_edges[i + 1] - 1``, shape [N + 1].
        num_parents: For each call, parents that are not answered yet, shape [N].
        has_limits: Whether any task has a time limit, so that the next two are filled.
        time_limit: For each group, seconds for its task, inf: none; the first group's is used.
        deadline: For each group, when the client of its task gives up, seconds; the first group's is used. Filled as
            tasks begin.
        due: What is to be sent upon the current answer; see `find_due`.
    """

    def __init__(
        self,
        *,
        group: Sequence[int],
        edges: Sequence[int],
        unanswered: MutableSequence[int],
        begins: Sequence[int],
        loop: Sequence[int],
        next_group: MutableSequence[int],
        end_group: Sequence[int],
        num_begun: int,
        closes_at: float,
        think_time: Sequence[float],
        arrival_time: MutableSequence[float],
        last_answer: MutableSequence[float],
        children: Sequence[int] = (),
        child_edges: Sequence[int] = (),
        num_parents: MutableSequence[int] | None = None,
        time_limit: Sequence[float] = (),
        deadline: MutableSequence[float] | None = None,
    ) -> None:
        self.group, self.edges, self.unanswered, self.begins = group, edges, unanswered, begins
        self.num_groups = len(unanswered)
        self.loop, self.next_group, self.end_group = loop, next_group, end_group
        self.num_begun, self.num_idle = num_begun, 0
        self.closes_at = closes_at
        self.think_time, self.arrival_time = think_time, arrival_time
        self.is_graph = num_parents is not None
        self.children, self.child_edges = children, child_edges
        self.num_parents: MutableSequence[int] = [] if num_parents is None else num_parents
        self.last_answer = last_answer
        self.has_limits = deadline is not None
        self.time_limit = time_limit
        self.deadline: MutableSequence[float] = [] if deadline is None else deadline
        self.due: list[int] = []


def find_due(conversations: Conversations, index: int, answered_at: float) -> None:
    """Record that a request has ended; fill ``due`` with the requests that are then sent."""
    due = conversations.due
    due.clear()
    if conversations.is_graph:
        group = following_task(conversations, index, answered_at)
    else:
        group = following(conversations, index, answered_at)
    if group >= 0:
        for each in range(conversations.edges[group], conversations.edges[group + 1]):
            due.append(each)


def following_task(conversations: Conversations, index: int, answered_at: float) -> int:
    """Record that a call has ended; put into ``due`` those that were waiting only for it.

    Returns:
        The first group of the task that its client begins because this one is over; -1: none.
    """
    for position in range(conversations.child_edges[index], conversations.child_edges[index + 1]):
        child = conversations.children[position]
        _wait_until(conversations, child, answered_at)
        left = conversations.num_parents[child] - 1
        conversations.num_parents[child] = left
        if not left:
            conversations.due.append(child)
    group = conversations.group[index]
    first = group if conversations.begins[group] else group - 1
    left = conversations.unanswered[first] - 1
    conversations.unanswered[first] = left
    ended_at = max(conversations.last_answer[first], answered_at)
    conversations.last_answer[first] = ended_at
    loop = conversations.loop[group]
    if left or loop < 0:
        return NOTHING
    begun = next_beginning(conversations, loop, ended_at, True)
    if begun >= 0:
        for each in range(conversations.edges[begun], conversations.edges[begun + 1]):
            _wait_until(conversations, each, ended_at)
        if conversations.has_limits:
            start_limit(conversations, begun)
    return begun


def start_limit(conversations: Conversations, group: int) -> None:
    """Set the deadline of a task that begins with a group of calls, whose sending times are known."""
    begins_at = conversations.arrival_time[conversations.edges[group]]
    for each in range(conversations.edges[group] + 1, conversations.edges[group + 1]):
        begins_at = min(begins_at, conversations.arrival_time[each])
    conversations.deadline[group] = begins_at + conversations.time_limit[group]


def deadline_of(conversations: Conversations, index: int) -> float:
    """Return when the client of a call gives up its task, seconds; infinity: never."""
    if not conversations.has_limits:
        return inf
    group = conversations.group[index]
    return conversations.deadline[group if conversations.begins[group] else group - 1]


def _wait_until(conversations: Conversations, index: int, answered_at: float) -> None:
    """Let a call be sent no sooner than its tool has run after an answer: answers may be recorded out of order."""
    sent_at = answered_at + conversations.think_time[index]
    if not conversations.arrival_time[index] >= sent_at:
        conversations.arrival_time[index] = sent_at


def following(conversations: Conversations, index: int, answered_at: float) -> int:
    """Record that a request has ended; return the group that is sent then, -1: none is, or none yet.

    What is sent waits for the latest answer to the turn, which need not be the one recorded last.
    """
    group = conversations.group[index]
    heard_at = max(conversations.last_answer[group], answered_at)
    conversations.last_answer[group] = heard_at
    left = conversations.unanswered[group] - 1
    conversations.unanswered[group] = left
    if left:
        return NOTHING
    behind, loop = group + 1, conversations.loop[group]
    if conversations.begins[behind]:
        behind = NOTHING if loop < 0 else next_beginning(conversations, loop, heard_at, True)
    if behind >= 0 and heard_at > answered_at:
        for each in range(conversations.edges[behind], conversations.edges[behind + 1]):
            _wait_until(conversations, each, heard_at)
    return behind


def next_beginning(conversations: Conversations, loop: int, time: float, thinks: bool) -> int:
    """Return the first group of the next conversation that has not begun, -1: there is none, or the client stops.

    Args:
        conversations: Conversations with closed loops.
        loop: The client's closed loop.
        time: When its client is free.
        thinks: Whether it thinks before it begins.
    """
    begins, group, end = conversations.begins, conversations.next_group[loop], conversations.end_group[loop]
    while group < end and not begins[group]:
        group += 1
    conversations.next_group[loop] = group + 1
    if group >= end:
        conversations.num_idle += 1
        return NOTHING
    first = conversations.edges[group]
    if (time + conversations.think_time[first] if thinks else time) >= conversations.closes_at:
        conversations.num_idle += 1
        return NOTHING
    behind = group + 1
    while not begins[behind]:
        behind += 1
    conversations.num_begun += conversations.edges[behind] - first
    return group


def think(conversations: Conversations, index: int, answered_at: float) -> None:
    """Let a client think from ``answered_at`` on, and record when it then sends a request.

    A call that its task has no time for is not sent: it ends at the deadline.
    """
    sent_at = answered_at + conversations.think_time[index]
    earliest = conversations.arrival_time[index]
    if earliest > sent_at:
        sent_at = earliest
    conversations.arrival_time[index] = min(sent_at, deadline_of(conversations, index))
