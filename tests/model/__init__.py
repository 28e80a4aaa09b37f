"""An exhaustive model of the commit protocol: begin, vote, decide, read, collect, restart.

Every state that can be reached within the bounds is looked at, the nearest first, so a
counterexample is as short as can be. ``python -m tests.model`` prints what was searched.

A step is one request to the store as the store sees it, which is where its effect is atomic.
Covered: a put that is answered, refused, refused because of itself (its answer was lost and
the client sent it again), or not answered, and then lands at any later time or never; listings
of several kinds at different moments; processes that stop at any step for ever, or for so long
that they write as zombies; crashes that others notice; pins that expire once their owner has
crashed; clocks that disagree by any amount, for a deadline may be found passed at any time.

Not covered: more ranks, tries and starts of the job than a scenario has; a listing torn in
itself, for S3 and its like list consistently, and a listing of many pages is two listings;
damaged bytes and records, which digests find; what happens inside one upload; tags and the
option to count verified checkpoints only, which keep more than is kept here.
"""
