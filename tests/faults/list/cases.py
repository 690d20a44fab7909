"""The list of faults: what is done, what must become of it, and which tests show that.

The letters: A ways around the interposer, B the shared memory, C clocks, D the daemon and its disk, E the kubelet, F the
GPU, G the network and the queue controller, H what comes in files. The tests of a case are the whole of it together;
test_cases.py checks that each exists, and `make test-faults` runs them and writes what came out to build/faults.json.
Long because it is one table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    id: str
    what: str
    """The action and the required outcome, as "action → outcome"."""
    tests: tuple[str, ...] = ()
    """FILE::TEST below tests/, without parameters."""
    not_applicable: str = ""
    """Why there is nothing to test."""


SELFTEST = "integration/test_selftest.py::test_by_mount_everything_is_hooked_that_the_page_says"
SELFTEST_WALLED = (
    "integration/test_selftest.py::test_by_environment_the_drivers_wall_is_the_one_that_holds"
)

CASES: tuple[Case, ...] = (
    # --- A: ways around the interposer ---
    Case(
        "A1",
        "the environment is cleared → hooked",
        (
            "integration/pods/test_injection.py::test_an_empty_environment_changes_nothing",
            "integration/pods/test_pods.py::test_clearing_the_environment_changes_nothing",
            SELFTEST_WALLED,
        ),
    ),
    Case(
        "A2",
        "a setuid program, for which the linker drops LD_PRELOAD → hooked",
        ("faults/test_bypass.py::test_a2_a_setuid_program_is_hooked",),
    ),
    Case(
        "A3",
        "a static program without a loader opens a GPU → told within 2 s, contained within 5 s",
        (
            "faults/test_bypass.py::test_a3_a_static_program_is_told_and_its_container_refused_and_held",
        ),
    ),
    Case("A4", "the tenant's own LD_PRELOAD before ours → hooked", (SELFTEST,)),
    Case(
        "A5",
        "LD_AUDIT binds the symbols elsewhere → hooked",
        ("faults/test_bypass.py::test_a5_an_auditor_of_the_linker_is_hooked",),
    ),
    Case(
        "A6",
        "a plugin opened with RTLD_DEEPBIND → hooked",
        (SELFTEST, "faults/test_bypass.py::test_a6_a7_a_plugin_linked_to_the_driver_is_hooked"),
    ),
    Case(
        "A7",
        "a plugin in a namespace of dlmopen → hooked",
        (SELFTEST, "faults/test_bypass.py::test_a6_a7_a_plugin_linked_to_the_driver_is_hooked"),
    ),
    Case(
        "A8",
        "symbols looked up by hand in the loaded files → hooked, or counted against what is accounted",
        (
            "faults/test_bypass.py::test_a8_who_looks_for_the_driver_among_the_loaded_files_finds_us",
            "ebpf/test_audit.py::test_launches_without_us_are_seen",
        ),
    ),
    Case(
        "A9",
        "the tenant brings its own copy of the driver → named and told within 2 s",
        (
            "integration/held/test_watch.py::test_a_copied_driver_is_named",
            "integration/held/test_watch.py::test_in_a_grant_it_is_held_by_default_and_its_neighbours_are_not",
            "ebpf/test_audit.py::test_a_copied_driver_is_noticed_by_its_inode",
        ),
    ),
    Case(
        "A10",
        "a loader patched so that it reads no preload file → hooked",
        ("faults/test_bypass.py::test_a10_a_linker_that_knows_no_preload_file_is_hooked",),
    ),
    Case(
        "A11",
        "chroot into a tree without our mounts → told and held",
        ("faults/test_bypass.py::test_a11_who_leaves_by_chroot_is_told_and_held",),
    ),
    Case(
        "A12",
        "our mounts covered in a user namespace → told and held",
        (
            "faults/test_bypass.py::test_a12_who_mounts_over_us_in_a_user_namespace_is_told_and_held",
        ),
    ),
    Case(
        "A13",
        "the library cannot be loaded or finds no region → CUDA is refused, never unlimited",
        (
            SELFTEST,
            "integration/test_whole_node.py::test_without_its_region_a_program_gets_no_cuda_rather_than_unlimited_cuda",
            "interpose/tenant/test_manners.py::test_one_line_and_no_more_when_cuda_is_refused",
        ),
    ),
    Case(
        "A14",
        "a GPU opened by the system call of 32-bit programs → told",
        ("ebpf/test_opens.py::test_an_open_is_told_within_a_second_whatever_the_way",),
    ),
    Case(
        "A15",
        "a GPU opened through io_uring → told, and refused where it may not",
        (
            "ebpf/test_opens.py::test_an_open_is_told_within_a_second_whatever_the_way",
            "ebpf/test_opens.py::test_a_refused_cgroup_gets_no_gpu_and_nobody_else_notices",
        ),
    ),
    Case(
        "A16",
        "the byte under a probe restored → told, nobody crashes",
        (
            "ebpf/test_audit.py::test_code_that_was_written_over_is_noticed",
            "ebpf/test_audit.py::test_a_restored_nop_of_our_own_probe_is_noticed",
        ),
    ),
    Case(
        "A17",
        "NVIDIA_VISIBLE_DEVICES=all without an allocation → refused by the configuration, told at the open",
        (
            "ebpf/test_contain.py::test_an_opener_without_an_allocation_is_refused_and_held_and_nobody_else",
            "unit/nodeagent/kubelet/test_safety.py::test_who_may_take_gpus_by_a_variable",
        ),
    ),
    Case(
        "A18",
        "every symbol of the driver's headers → hooked or listed",
        (
            "interpose/driver/test_exports.py::test_exactly_the_real_librarys_symbols_are_exported",
            "interpose/driver/test_resolve.py::test_every_wrapped_name_in_every_version_and_flavour_is_its_wrapper",
            "interpose/driver/test_resolve.py::test_what_is_not_wrapped_comes_from_the_driver_untouched",
        ),
    ),
    # --- B: the shared memory ---
    Case(
        "B1",
        "the usage file truncated → repaired and counted, the neighbour unharmed",
        (
            "integration/daemon/test_daemon_hostile.py::test_truncating_the_usage_file_is_repaired_and_counted",
        ),
    ),
    Case(
        "B2",
        "the usage file grown → no space, repaired and counted",
        ("faults/test_regions.py::test_b2_the_file_cannot_be_grown_into_the_nodes_memory",),
    ),
    Case(
        "B3",
        "holes punched into the usage file → the process registers anew or goes on",
        ("faults/test_regions.py::test_b3_a_hole_is_zeroes_and_harms_its_own_grant_alone",),
    ),
    Case(
        "B4",
        "random bytes everywhere → no crash, no absurd figure",
        (
            "integration/daemon/test_daemon_hostile.py::test_garbage_everywhere_is_counted_and_believed_nowhere",
            "fuzz/test_corpus.py::test_no_input_of_the_corpus_is_a_finding",
        ),
    ),
    Case(
        "B5",
        "magic, version and sizes of the header changed → counted, believed nowhere",
        ("faults/test_regions.py::test_b5_a_changed_header_is_counted_and_believed_nowhere",),
    ),
    Case(
        "B6",
        "a slot in the name of pid 1 or a stranger → no signal to anybody",
        (
            "faults/test_regions.py::test_b6_a_slot_in_the_name_of_a_stranger_brings_him_no_signal",
            "integration/daemon/test_daemon_restart.py::test_a_claim_in_the_name_of_a_stranger_is_zeroed",
        ),
    ),
    Case(
        "B7",
        "counters at 2⁶⁴ − 1 or running backwards → clamped and counted",
        (
            "integration/daemon/test_daemon_hostile.py::test_an_impossible_value_is_counted_and_not_shown",
            "integration/daemon/test_daemon_hostile.py::test_a_counter_that_runs_backwards_is_counted",
            "unit/nodeagent/grants/test_usage.py::test_a_counter_that_stays_wrong_is_counted_at_every_look",
        ),
    ),
    Case(
        "B8",
        "a link, a pipe or a device in the place of a file → refused",
        (
            "unit/nodeagent/host/test_beneath.py::test_links_and_ways_out_are_refused",
            "unit/nodeagent/host/test_beneath.py::test_a_pipe_does_not_make_us_wait_and_is_refused",
            "unit/nodeagent/host/test_beneath.py::test_a_file_is_replaced_whole_and_links_planted_in_its_way_are_not_followed",
        ),
    ),
    Case(
        "B9",
        "SIGKILL at any instruction, thousands of times → 0 overshoot, 0 left charged",
        ("interpose/attach/test_torture.py::test_kills_never_pass_the_limit_and_leak_nothing",),
    ),
    Case(
        "B10",
        "a tenant stopped in the middle → the allocations of others do not wait for it",
        ("faults/test_regions.py::test_b10_a_stopped_process_holds_up_nobodys_allocations",),
    ),
    Case(
        "B11",
        "a storm of forks → 256 slots, the 257th is told so",
        (
            "integration/daemon/test_daemon_grants.py::test_the_257th_process_is_told_that_there_is_no_space",
        ),
    ),
    Case(
        "B12",
        "a process that becomes another 1,000 times → the slots stay as they are",
        (
            "faults/test_regions.py::test_b12_a_process_that_becomes_another_again_and_again_keeps_to_one_slot",
            "integration/daemon/test_daemon_hostile.py::test_a_program_that_becomes_another_gives_its_slot_back",
        ),
    ),
    Case(
        "B13",
        "the pid of a dead process given to another → never taken for it",
        (
            "faults/test_regions.py::test_b13_the_pid_of_a_dead_process_is_never_taken_for_it",
            "faults/test_regions.py::test_b13_a_daemon_that_slept_meanwhile_takes_nobody_for_the_dead",
        ),
    ),
    Case(
        "B14",
        "one writes 0xff everywhere → its neighbour's work goes on at its rate",
        (
            "faults/test_regions.py::test_b14_one_who_writes_rubbish_everywhere_costs_its_neighbour_nothing",
        ),
    ),
    Case(
        "B15",
        "the daemon killed while it publishes → readers keep a whole page, the next repairs",
        ("faults/test_regions.py::test_b15_killed_while_it_publishes_readers_keep_a_whole_page",),
    ),
    # --- C: clocks ---
    Case(
        "C1",
        "the wall clock steps by an hour and ten years → grants and shares as before",
        (
            "faults/test_clocks.py::test_c1_the_wall_clock_steps_and_nothing_else_does",
            "faults/test_clocks.py::test_c1_the_queue_goes_by_clocks_that_do_not_step",
        ),
    ),
    Case(
        "C2",
        "a tenant in a time namespace of its own → its share as before, no burst",
        ("faults/test_clocks.py::test_c2_a_clock_of_ones_own_buys_no_time",),
    ),
    Case(
        "C3",
        "all processes frozen and thawed → no burst",
        ("faults/test_clocks.py::test_c3_who_was_frozen_with_everybody_does_not_make_up_for_it",),
    ),
    Case(
        "C4",
        "the daemon stopped for long → jobs go on at their rate, no burst after it",
        ("faults/test_clocks.py::test_c4_while_the_daemon_is_stopped_jobs_go_on_at_their_rate",),
    ),
    Case(
        "C5",
        "clocks that race and run backwards → the virtual clock never does",
        (
            "properties/test_gate.py::test_the_virtual_clock_never_runs_backwards_nor_wraps",
            "properties/test_gate.py::test_a_torn_or_hostile_plan_never_hangs_a_tenant",
        ),
    ),
    # --- D: the daemon and its disk ---
    Case(
        "D1",
        "kill -9 while it answers → nothing acknowledged is lost or given twice",
        (
            "kubelet/test_endurance.py::test_killed_while_it_answers_nothing_acknowledged_is_lost_or_given_twice",
            "kubelet/test_stateful.py::TestMachineMore::runTest",
            "integration/gpus/test_mig_demand.py::test_a_daemon_that_is_killed_meanwhile_finds_ledger_and_card_in_agreement",
            "integration/spilling/test_spilling.py::test_a_daemon_killed_at_any_step_carries_on",
        ),
    ),
    Case(
        "D2",
        "the state disk is full → told, grants live in their regions, nothing is lost, recovers when there is room",
        (
            "faults/test_disks.py::test_d2_on_a_full_disk_grants_live_in_their_regions_until_there_is_room",
        ),
    ),
    Case(
        "D3",
        "fdatasync fails → the daemon ends with 75 and loses nothing silently",
        (
            "faults/test_disks.py::test_d3_a_sync_that_fails_is_never_taken_for_one_that_did_not",
            "integration/daemon/test_daemon_restart.py::test_a_ledger_that_cannot_be_written_ends_the_daemon_with_75",
        ),
    ),
    Case(
        "D4",
        "any system call fails for want of descriptors or memory → no hang, nothing damaged",
        ("faults/test_scarcity.py::test_d4_a_call_that_fails_hangs_nobody_and_damages_nothing",),
    ),
    Case(
        "D5",
        "the database truncated, zeroed, bits flipped, older, newer → put aside or refused",
        (
            "faults/test_disks.py::test_d5_a_damaged_database_is_put_aside_or_refused_in_a_sentence",
            "queue/server/test_boundaries.py::test_flipped_bits_and_cuts_in_the_database",
            "queue/server/test_boundaries.py::test_damage_in_the_schema_itself_is_told",
            "queue/server/test_api.py::test_a_newer_database_is_left_alone",
            "integration/daemon/test_daemon_restart.py::test_a_corrupt_ledger_is_put_aside_and_the_regions_say_what_lives",
            "unit/nodeagent/cli/test_cli.py::test_a_ledger_of_a_later_version_is_kept",
        ),
    ),
    Case(
        "D6",
        "state of another boot → not believed",
        ("unit/nodeagent/ledger/test_ledger.py::test_another_boot_has_none_of_them",),
    ),
    Case(
        "D7",
        "two daemons → the second refuses to start",
        (
            "integration/daemon/test_daemon_restart.py::test_a_second_daemon_in_the_same_place_refuses_to_start",
            "unit/nodeagent/cli/test_cli.py::test_one_state_directory_has_one_daemon",
        ),
    ),
    Case(
        "D8",
        "the daemon hangs → the watchdog starts it again, jobs are unaffected",
        (
            "faults/test_clocks.py::test_d8_a_daemon_that_hangs_says_so_by_its_silence",
            "packages/test_machine.py::test_a_stopped_daemon_is_started_again_and_its_jobs_go_on",
        ),
    ),
    Case(
        "D9",
        "the disk of the log is full, standard error is closed → it keeps running",
        ("faults/test_disks.py::test_d9_without_a_place_for_its_log_the_daemon_keeps_running",),
    ),
    Case(
        "D10",
        "a memory limit of 64 MiB → ended and started again, grants and jobs stay",
        ("faults/test_scarcity.py::test_d10_a_limit_on_memory_costs_no_grant",),
    ),
    # --- E: the kubelet ---
    Case(
        "E1",
        "the kubelet restarts again and again → registered again each time",
        ("kubelet/test_endurance.py::test_registered_again_after_every_restart_of_the_kubelet",),
    ),
    Case(
        "E2",
        "the same Allocate a hundred times, and 32 at once → identical answers",
        (
            "faults/test_kubelet.py::test_e2_the_same_allocate_again_and_at_once_is_answered_the_same",
            "kubelet/test_plugin.py::test_a_restarted_container_has_the_same_grant_and_no_wait",
        ),
    ),
    Case(
        "E3",
        "unknown, doubled, no, 100,000 and huge device ids → refused",
        (
            "faults/test_kubelet.py::test_e3_ids_that_are_none_of_ours_are_refused",
            "faults/test_kubelet.py::test_e3_one_device_twice_is_no_two",
            "kubelet/test_plugin.py::test_devices_that_are_not_offered_are_refused",
        ),
    ),
    Case(
        "E4",
        "Prepare after Unprepare → ended, once the claim is gone for good: it may be another pod's",
        (
            "unit/nodeagent/dra/test_book.py::test_a_prepare_that_comes_after_its_unprepare_is_ended_once_the_claim_is_gone_for_good",
        ),
    ),
    Case(
        "E5",
        "Unprepare of an unknown claim → fine",
        (
            "unit/nodeagent/dra/test_book.py::test_unprepare_of_an_unknown_claim_is_fine_and_does_nothing",
        ),
    ),
    Case(
        "E6",
        "a container restarts again and again → no stale usage, no mounts left",
        ("faults/test_kubelet.py::test_e6_a_container_that_starts_again_and_again_leaves_nothing",),
    ),
    Case(
        "E7",
        "names and UIDs of pods with ways out, newlines, 4 KiB → refused or shown escaped",
        (
            "faults/test_kubelet.py::test_e7_odd_names_of_pods_lead_nowhere",
            "queue/serving/test_cli.py::test_a_manifest_without_a_name_is_no_target",
        ),
    ),
    # --- F: the GPU ---
    Case(
        "F1",
        "NVML does not start → unhealthy, and healthy later",
        (
            "integration/daemon/test_daemon_restart.py::test_without_nvml_the_daemon_serves_and_says_what_is_missing",
            "integration/gpus/test_driver_trouble.py::test_a_replaced_driver_is_read_by_a_new_process_and_told",
        ),
    ),
    Case(
        "F2",
        "a GPU falls off the bus → that one only",
        ("integration/gpus/test_gpu_health.py::test_a_gpu_that_fell_off_the_bus_is_lost_alone",),
    ),
    Case(
        "F3",
        "every XID → the class of the table",
        (
            "unit/nodeagent/gpus/test_health.py::test_the_shipped_table_is_nvidias_catalogue",
            "unit/nodeagent/gpus/test_health.py::test_a_code_nobody_knows_is_looked_at",
        ),
    ),
    Case(
        "F4",
        "NVML hangs → everything else goes on, the reader is replaced",
        (
            "integration/gpus/test_driver_trouble.py::test_a_hung_driver_leaves_running_grants_and_all_else_alone",
        ),
    ),
    Case(
        "F5",
        "the driver is replaced under us → read anew, regions are kept",
        (
            "integration/gpus/test_driver_trouble.py::test_a_replaced_driver_is_read_by_a_new_process_and_told",
            "integration/gpus/test_driver_replaced.py::test_the_driver_from_before_an_update_is_no_foreign_one",
        ),
    ),
    Case(
        "F6",
        "a kernel that never ends → told as a runaway, its grant held, others go on",
        ("faults/test_gpus.py::test_f6_work_that_never_ends_is_a_runaway_and_the_others_go_on",),
    ),
    Case(
        "F7",
        "the driver refuses an allocation after it was charged → the charge is given back",
        (
            "interpose/memory/test_accounting.py::test_charges_equal_the_devices_truth_after_each_step",
        ),
    ),
    Case(
        "F8",
        "a process has twice the memory it accounts → told after three looks",
        (
            "unit/nodeagent/watch/test_detection.py::test_memory_beyond_the_slack_is_told_after_three_looks",
        ),
    ),
    # --- G: the network and the queue controller ---
    Case(
        "G1",
        "a node is cut off → jobs go on, nothing starts after the lease, reconciled when it heals",
        ("queue/serving/test_partition.py::test_a_partition_stops_nothing_and_starts_nothing",),
    ),
    Case(
        "G2",
        "the network works in one direction only → as if it were cut",
        ("faults/test_network.py::test_g2_one_direction_alone_is_as_good_as_none",),
    ),
    Case(
        "G3",
        "delay, loss, reordering, 1 kbit/s → started once, nothing piles up",
        (
            "faults/test_network.py::test_g3_a_bad_network_starts_nothing_twice_and_piles_nothing_up",
        ),
    ),
    Case(
        "G4",
        "the old leader wakes up → all its writes are refused",
        (
            "faults/test_network.py::test_g4_a_controller_that_slept_through_its_successor_writes_nothing_any_more",
            "queue/state/test_nodes.py::test_a_controller_that_slept_through_its_successor_stops",
        ),
    ),
    Case(
        "G5",
        "the controller killed again and again under load → each job starts exactly once",
        (
            "faults/test_kills.py::test_some_kills_lose_double_and_overshoot_nothing",
            "queue/serving/test_kill9.py::test_killed_at",
        ),
    ),
    Case(
        "G6",
        "a node with an old epoch → may say nothing",
        ("queue/state/test_nodes.py::test_a_stale_epoch_may_say_nothing",),
    ),
    Case(
        "G7",
        "decisions repeated → one start",
        (
            "unit/nodeagent/queue/test_queue_decisions.py::test_a_repeated_decision_about_ended_work_starts_nothing",
            "unit/nodeagent/queue/test_queue_decisions.py::test_whatever_comes_in_whatever_order",
            "queue/state/test_nodes.py::test_a_confirmation_twice_changes_nothing",
        ),
    ),
    Case(
        "G8",
        "the controller's database restored from an old backup → nodes report, no job is ended",
        (
            "queue/state/test_nodes.py::test_a_database_restored_from_an_old_copy_takes_over_what_runs",
        ),
    ),
    Case(
        "G9",
        "certificates expired, foreign, self-signed, of another name → refused",
        (
            "faults/test_network.py::test_g9_certificates_that_are_not_good_are_refused",
            "queue/server/test_api.py::test_certificates",
            "queue/state/test_trust.py::test_a_certificate_is_nobody_until_somebody_says_who_it_is",
        ),
    ),
    Case(
        "G10",
        "a token for another audience → refused",
        (
            "queue/server/test_callers.py::test_without_a_good_token_nobody_is_anybody",
            "queue/server/test_callers.py::test_reviews_are_kept_for_a_moment_and_asked_once",
        ),
    ),
    Case(
        "G11",
        "silent and flooding peers by the dozen, messages and streams beyond any need → refused, others served",
        (
            "queue/server/test_hostile.py::test_the_honest_are_served_beside_33_who_are_not",
            "queue/server/test_hostile.py::test_more_streams_than_anybody_needs_are_refused_and_nodes_keep_theirs",
            "queue/server/test_api.py::test_a_message_above_the_limit_is_refused_before_it_is_read",
            "queue/serving/test_crowded_node.py::test_many_wait_on_one_node",
            "integration/daemon/test_api_abused.py::test_silent_connections_of_two_users_lock_nobody_out_and_are_ended",
        ),
    ),
    # --- H: what comes in files ---
    Case(
        "H1",
        "bombs, deep nesting, bad text and odd numbers in manifests → refused with their place",
        (
            "queue/server/test_api.py::test_garbage_is_refused_with_its_place",
            "queue/manifests/test_manifests.py::test_a_document_that_cannot_be_used_is_told_and_the_rest_is_read",
            "queue/manifests/test_reading_fuzz.py::test_any_text_is_read_or_told",
            "queue/manifests/test_reading_fuzz.py::test_an_odd_value_anywhere_is_read_or_told",
        ),
    ),
    Case(
        "H2",
        "newlines, escapes, NUL and bidi in names → escaped in every log and table",
        (
            "faults/test_inputs.py::test_h2_a_line_of_a_log_is_one_line_and_moves_no_cursor",
            "unit/nodeagent/cli/test_cli.py::test_a_newline_in_a_name_stays_on_the_line",
            "unit/nodeagent/metrics/test_metrics.py::test_a_name_from_a_user_cannot_break_the_exposition",
        ),
    ),
    Case(
        "H3",
        "a million distinct values of a label → the cap on series holds",
        (
            "faults/test_inputs.py::test_h3_a_controller_with_names_without_end_has_so_many_series_and_no_more",
            "unit/nodeagent/metrics/test_metrics.py::test_above_the_cap_series_are_left_out_and_counted_by_the_next_scrape",
        ),
    ),
    Case(
        "H4",
        "an environment that brings a line of its own → refused",
        ("faults/test_inputs.py::test_h4_a_name_is_no_line_of_an_environment",),
    ),
    Case(
        "H5",
        "an admission webhook is down → as its policy says",
        not_applicable="needs an API server: in `make test-cluster` tests/cluster/api_only/pods/test_missed.py"
        " kills and stops the controller, with both failure policies for objects that name a queue",
    ),
)


def by_id() -> dict[str, Case]:
    return {case.id: case for case in CASES}
