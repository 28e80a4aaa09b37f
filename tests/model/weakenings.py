"""Every small change to the protocol that must break it, or else this model has gone blind."""

from __future__ import annotations

from enum import Enum


class Weakening(Enum):
    """What is done wrong; all the rest is done right."""

    # Saving.
    DATA_KEYS_BY_STEP = "data keys hold the step only, not the attempt"
    VOTES_COUNTED = "readiness is a count of files"
    VOTE_BEFORE_ANSWER = "an upload without an answer counts as uploaded"
    VOTE_CHANGED = "a rank whose vote was not answered votes again, differently"
    DECISION_OVERWRITES = "the decision is written without put-if-absent"
    NO_READ_BACK = "a refusal or silence is taken for an abort, without reading back"
    DOUBT_IS_ABORT = "silence is taken for an abort if the read-back finds nothing yet"
    FAILURE_WITHOUT_ABORT = "failure is reported without a durable ABORT"
    # Settling.
    ABORT_BY_CLOCK = "an attempt past its deadline counts as aborted, without a record"
    COLLECTED_BY_AGE = "the collector deletes undecided attempts by age"
    DECISIONS_DELETED = "decisions are deleted while a stalled writer may still write"
    # Reading and collecting.
    NO_CHECK_AFTER_PIN = "a reader pins without checking `retired` again"
    PINS_BEFORE_RETIRED = "the collector lists pins before it writes `retired`"
    RETIRED_UNANSWERED = "the collector goes on although `retired` was not answered"
    PINS_UNLISTED = "a failed listing of pins is taken for no pins"
    PIN_EXPIRES = "a pin expires under a reader that is still reading"
    NO_FLOOR = "the collector may retire the newest checkpoint"
    # Starting again.
    LATEST_BY_STEP = "`latest` is the highest step: no incarnation fence"
    LATEST_BY_DECISIONS = "`latest` is found in decisions alone: claims are not looked at"
    CLAIMS_BEFORE_DECISIONS = "`latest` lists incarnations first and decisions then"
    NOTHING_IF_UNLISTED = "a failed listing is taken for no checkpoint"
    CLAIM_OVERWRITES = "an incarnation is claimed without put-if-absent"
    FLOOR_BY_STEP = "the collector keeps the highest step instead of `latest`"
    UNPINNED_BEFORE_CLAIM = "a job lets go of its parent once it was read, and claims later"
    RETIRED_FOR_GOOD = "a mark `retired` holds against an incarnation that it did not know of"
    NO_CLAIMS_AGAIN = "the collector does not list incarnations after it wrote `retired`"
    CLAIMS_BEFORE_PINS = "the collector lists incarnations after `retired`, and pins then"
    LATEST_VOIDS_MARKS = "a mark `retired` is void as long as `latest` points there, no longer"
    MARKS_UNNUMBERED = "a reader takes any incarnation, old ones too, to void a mark `retired`"
    # Stores without put-if-absent.
    RESOLVED_ANYWAY = "resolve decides on a store without put-if-absent"
    ABORTED_ANYWAY = "the collector aborts on a store without put-if-absent"
    MIND_CHANGED = "a coordinator without put-if-absent aborts after an unanswered COMMIT"
