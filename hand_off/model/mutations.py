"""The rules that the model can break, one at a time: it must catch each."""

from __future__ import annotations

MUTATIONS = {
    # the obvious ones
    "off_by_one_cut": "batch computes offset <= C instead of < C",
    "no_fencing": "no script looks at the epoch",
    "flip_before_verify": "a run is published though its data was not verified",
    "no_gen_check": "apply does not compare the generation id",
    "non_atomic_apply": "states and `applied` are written by two scripts",
    "retire_too_early": "retire keeps only the newest generation",
    "seen_id_without_location": "seen id written before apply, a bare flag without (p, o)",
    "takeover_no_epoch_bump": "takeover does not fence the speed writer",
    # the rules of the first draft, each one a flaw
    "draft_views": "open: views := catalog, definitions still served are dropped",
    "draft_counters": "epoch and generation number are counters kept in Redis",
    "draft_publish": "publish does not check that its generation exists",
    "draft_manifest": "durable manifests unordered, the last written one wins",
    "draft_takeover": "takeover publish does not check that it still owns epoch",
    "draft_init": "creating meta does not check the epoch",
    "draft_retry": "RETRY re-reads states but keeps the old generation's views",
    "draft_setnx": "dedup by SETNX before apply, unfenced, a seen id always counts",
    "seen_id_before_apply": "as draft_setnx, but fenced and void when not below `from`",
    "draft_flush_seen_ids": "seen ids are not reloaded after Redis was lost",
    "draft_takeover_seen_ids": "seen ids are not loaded for what takeover skipped",
    # other mistakes a developer may make
    "no_offset_check": "apply does not compare `applied` with `from`",
    "no_marked_check": "apply does not check that the seen ids are complete",
    "no_wait_for_master": "batch does not wait until M >= C",
    "takeover_behind": "takeover takes M though M < applied",
    "takeover_keeps_gens": "takeover leaves older generations in place",
    "retire_data_first": "retire deletes states before the generation's entry",
    "reader_no_check": "reader sums whatever is there, with or without its own generation",
    "torn_read": "reader reads meta and states in two steps",
    "different_payloads": "duplicates in two partitions differ (producer contract broken)",
    "flip_redis_first": "Redis is flipped before the durable append",
    # adopt: a run goes on with the generation of one that failed
    "adopt_published": "adopt takes over the generation of the published run",
    "adopt_new_views": "adopt does not check that the generation computes the run's views",
    "adopt_keeps_run": "adopt leaves the failed run its generation: both runs have it",
    "append_unconditional": "a run compares with the last entry, and appends later whatever came meanwhile",
    # overtake: a run at the master's end while the writer goes on (a backlog of history)
    "overtake_back": "overtake does not check that the speed layer is not past C",
    "overtake_seen_ids": "seen ids are not loaded for what overtake skipped",
    "overtake_keeps_gens": "overtake leaves older generations in place",
    # switch: a run of another version of the source, which finds other records valid
    "switch_keeps_seen_ids": "a switch keeps the seen ids of the version before",
    "switch_opens": "a run of another version opens a generation, as any other",
    "switch_judged_before": "whether it is a switch is judged by an earlier look, whatever Redis is by then",
    "switch_old_reading": "the writer reads on as the first version of the source does",
    # rebase: Kafka lost its newest records, and the same source goes on with a new one
    "rebase_at_master": "the new records begin at the master's end, though speed has applied more",
    "rebase_late_floor": "rebase raises the floor only after it has read what is applied",
    "rebase_no_floor": "speed views of runs before the rebase are still used and continued",
}

SEEN_BEFORE_APPLY = ("seen_id_without_location", "seen_id_before_apply", "draft_setnx")
