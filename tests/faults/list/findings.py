"""Findings S1 to S27 of a security review by attack, and the tests that keep each fixed.

For those in MUTATED it was tried that a test fails when the remedy is taken out.
"""

from __future__ import annotations

FINDINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "S1": (
        "one message of a node destroys the controller's database",
        (
            "queue/state/test_trust.py::test_a_number_that_no_controller_gave_is_refused",
            "queue/state/test_trust.py::test_a_number_out_of_range_is_never_written",
            "queue/server/test_boundaries.py::test_boundaries_of_every_field",
        ),
    ),
    "S2": (
        "any user becomes a node and is sent others' manifests",
        (
            "queue/server/test_roles.py::test_a_method_lets_in_whom_the_table_does",
            "queue/state/test_trust.py::test_a_node_is_sent_no_manifest_and_no_secret",
        ),
    ),
    "S3": (
        "a node's first hello invents or takes over work",
        (
            "queue/state/test_trust.py::test_invented_work_is_not_adopted_and_takes_nobodys_place",
            "queue/state/test_trust.py::test_a_pending_job_is_not_replaced_by_a_nodes_row_of_that_name",
            "queue/state/test_trust.py::test_no_node_moves_terms_or_revisions_by_its_word",
        ),
    ),
    "S4": (
        "one message of a node stops the controller for good",
        ("queue/state/test_trust.py::test_no_node_moves_terms_or_revisions_by_its_word",),
    ),
    "S5": (
        "anybody changes anybody's workload",
        (
            "queue/state/test_trust.py::test_apply_records_who_applied_and_nobody_else_changes_it",
            "queue/state/test_slices.py::test_what_another_took_meanwhile_is_his_and_nothing_of_the_call_is_applied",
        ),
    ),
    "S6": (
        "submitters decide their own priority and admission checks",
        (
            "queue/state/test_trust.py::test_a_priority_beyond_a_class_takes_an_admin",
            "queue/state/test_trust.py::test_a_status_is_not_its_submitters_word",
        ),
    ),
    "S7": (
        "sluice.dev/users is no fence",
        ("queue/state/test_trust.py::test_the_fence_of_a_queue_holds_on_every_door",),
    ),
    "S8": (
        "empty lists mean everybody",
        ("queue/state/test_trust.py::test_a_certificate_is_nobody_until_somebody_says_who_it_is",),
    ),
    "S9": (
        "without TLS every local user is admin and every node",
        (
            "queue/state/test_trust.py::test_on_the_machine_root_and_the_owner_are_admin_and_others_are_themselves",
        ),
    ),
    "S10": (
        "the chart gives all nodes one key",
        (
            "queue/server/test_callers.py::test_an_agent_is_the_node_of_its_own_token_and_no_other",
            "packages/test_chart_rendered.py::test_without_a_secret_the_chart_makes_one_that_the_controller_and_its_clients_believe",
        ),
    ),
    "S11": (
        "a flipped bit keeps a service from starting",
        (
            "faults/test_disks.py::test_d5_a_damaged_database_is_put_aside_or_refused_in_a_sentence",
            "queue/server/test_boundaries.py::test_flipped_bits_and_cuts_in_the_database",
        ),
    ),
    "S12": (
        "silent HTTP clients take the probes away",
        (
            "unit/nodeagent/api/test_metrics_http.py::test_who_is_silent_takes_nothing_from_who_asks",
            "queue/server/test_hostile.py::test_the_honest_are_served_beside_33_who_are_not",
        ),
    ),
    "S13": (
        "two users lock root out of the daemon",
        (
            "integration/daemon/test_api_abused.py::test_silent_connections_of_two_users_lock_nobody_out_and_are_ended",
        ),
    ),
    "S14": (
        "an image opts out of the preload",
        ("integration/pods/test_container_hook.py::test_ours_goes_before_what_the_image_has",),
    ),
    "S15": (
        "the hook follows an image's link into /proc",
        (
            "integration/pods/test_container_hook.py::test_a_link_to_a_file_of_the_kernel_is_refused_unread",
        ),
    ),
    "S16": (
        "work that cannot be deleted",
        (
            "queue/state/test_trust.py::test_work_that_could_never_be_named_again_is_not_taken",
            "queue/state/test_trust.py::test_what_an_earlier_version_let_in_can_be_seen_and_deleted",
        ),
    ),
    "S17": (
        "any user floods the log",
        (
            "integration/daemon/test_api_abused.py::test_malformed_messages_without_end_fill_no_log",
            "queue/server/test_hostile.py::test_junk_in_the_place_of_a_message_is_refused_without_a_traceback",
        ),
    ),
    "S18": (
        "a grant whose region files are gone is forgotten while its job runs",
        (
            "integration/daemon/test_daemon_restart.py::test_region_files_that_root_removed_give_nobody_their_quota_twice",
        ),
    ),
    "S19": (
        "out of descriptors is a defect",
        (
            "integration/daemon/test_api_abused.py::test_out_of_descriptors_it_refuses_politely_and_tenants_notice_nothing",
        ),
    ),
    "S20": (
        "all slots to one idle user",
        (
            "unit/nodeagent/grants/test_slots_per_user.py::test_one_idle_user_takes_half_of_the_slots_and_another_the_rest",
        ),
    ),
    "S21": (
        "the controller's series have no cap",
        (
            "faults/test_inputs.py::test_h3_a_controller_with_names_without_end_has_so_many_series_and_no_more",
        ),
    ),
    "S22": (
        "watchers of one user slow the daemon down",
        ("integration/daemon/test_api_abused.py::test_watchers_of_one_user_are_bounded",),
    ),
    "S23": (
        "the reader of NVML prints a traceback when its daemon dies",
        (
            "unit/nodeagent/cli/test_run_retries.py::test_a_reader_whose_daemon_is_gone_ends_without_a_word",
        ),
    ),
    "S24": (
        "one GPU of two nodes, labels of 100 KB",
        (
            "queue/state/test_trust.py::test_a_gpu_is_one_nodes",
            "queue/state/test_trust.py::test_a_nodes_word_about_gpus_is_about_its_own",
        ),
    ),
    "S25": (
        "a tenant whose clock is behind waits for ever",
        (
            "interpose/tenant/test_manners.py::test_a_process_whose_clock_is_behind_its_grants_waits_for_nobody",
        ),
    ),
    "S26": (
        "`sluice run` fails while the daemon restarts",
        (
            "unit/nodeagent/cli/test_run_retries.py::test_a_daemon_that_comes_back_is_asked_again_and_that_is_said",
        ),
    ),
    "S27": (
        "one certificate takes all nodes away",
        (
            "queue/server/test_hostile.py::test_more_streams_than_anybody_needs_are_refused_and_nodes_keep_theirs",
        ),
    ),
}

MUTATED: tuple[str, ...] = (
    "S1",
    "S2",
    "S3",
    "S4",
    "S5",
    "S6",
    "S7",
    "S8",
    "S9",
    "S10",
    "S11",
    "S12",
    "S13",
    "S14",
    "S15",
    "S16",
    "S17",
    "S18",
    "S19",
    "S20",
    "S21",
    "S22",
    "S23",
    "S24",
    "S25",
    "S26",
    "S27",
)
"""Where the remedy was taken out by hand and the tests were seen to fail."""
