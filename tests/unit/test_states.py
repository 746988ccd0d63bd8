"""The table of states: closed, connected, and with no way out of an end but by hand."""

from __future__ import annotations

from foxqueue import states


def test_transitions_are_between_known_states() -> None:
    for verb, (before, after) in states.TRANSITIONS.items():
        assert before <= {*states.STATES, "-"}, verb
        assert after <= {*states.STATES, "-"}, verb


def test_nothing_leads_out_of_an_end_by_itself() -> None:
    for verb, (before, _) in states.TRANSITIONS.items():
        assert not before & states.ENDED or verb in ("requeue", "purge"), verb  # by hand, and out of the queue


def test_only_enqueue_makes_jobs() -> None:
    assert [verb for verb, (before, _) in states.TRANSITIONS.items() if "-" in before] == ["enqueue"]


def test_every_state_can_be_reached_and_left() -> None:
    reached = {state for _, after in states.TRANSITIONS.values() for state in after}
    left = {state for before, _ in states.TRANSITIONS.values() for state in before}
    assert reached - {"-"} == set(states.STATES)
    assert left - {"-"} == set(states.STATES)


def test_waiting_running_and_ended_are_all_there_is() -> None:
    assert {states.RUNNING} | states.WAITING | states.ENDED == set(states.STATES)
    assert not states.WAITING & states.ENDED


def test_only_reasons_to_end_are_retried() -> None:
    assert states.RETRIED < states.END_REASONS
    assert not states.RETRIED & {"cancelled_by_user", "poison", "bad_payload", "lease_lost", "shutdown"}


def test_what_was_given_back_has_reasons_of_its_own() -> None:
    assert {"paused", "later", "quarantined"} == states.RELEASED - states.END_REASONS
    assert not states.RELEASED & states.RETRIED


def test_scripts_are_transitions_or_others() -> None:
    assert not set(states.TRANSITIONS) & states.OTHER_SCRIPTS
