use fairmesh_model::InstanceId;

use super::*;

fn stats(n: usize) -> EndpointStats {
    let stats = EndpointStats::default();
    let ids: Vec<_> = (0..n).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
    let _ = stats.assign_indices(ids.iter().map(|id| (id, 0)));
    stats
}

#[test]
fn endpoint_indices_map_to_consecutive_segment_offsets() {
    let mut expected = (0, 0);
    for index in 0..10_000 {
        assert_eq!(segment_of(index), expected, "{index}");
        expected.1 += 1;
        if expected.1 == FIRST_SEGMENT << expected.0 {
            expected = (expected.0 + 1, 0);
        }
    }
    assert!(segment_of(i32::MAX as u32).0 <= FURTHER_SEGMENTS);
}

#[test]
fn outstanding_call_counts_are_kept_per_endpoint_index() {
    let stats = stats(1000);
    for index in 0..1000 {
        (0..index % 7).for_each(|_| stats.begin(index));
    }
    assert!((0..1000).all(|index| stats.outstanding(index) == index % 7));
}

#[test]
fn calls_to_unassigned_endpoint_indices_are_ignored() {
    let stats = EndpointStats::default();
    for index in [70, u32::MAX] {
        stats.begin(index);
        stats.finish(index, Outcome::Unreachable, 0);
        assert_eq!((stats.outstanding(index), stats.ejected_until(index)), (0, 0));
    }
}

#[test]
fn load_reports_are_kept_per_endpoint_index() {
    let stats = stats(100);
    let load = |index| LoadReport { requests: Some(index), ..LoadReport::default() };
    for index in 0..100 {
        assert_eq!(stats.last_report(index), None);
        stats.record_report(index, load(index), u64::from(index) + 1);
        stats.record_report(index, LoadReport::default(), 9_999);
    }
    for index in 0..100 {
        assert_eq!(
            stats.last_report(index),
            Some(ReceivedReport { load: load(index), at: u64::from(index) + 1 })
        );
    }
    for unassigned in [5_000, u32::MAX] {
        stats.record_report(unassigned, load(1), 1);
        assert_eq!(stats.last_report(unassigned), None);
    }
}

#[test]
fn outstanding_call_count_never_drops_below_zero() {
    let stats = stats(1);
    stats.begin(0);
    stats.finish(0, Outcome::Ok, 0);
    stats.finish(0, Outcome::Ok, 0);
    assert_eq!(stats.outstanding(0), 0);
}

#[test]
fn concurrently_changed_call_counts_add_up() {
    let stats = stats(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for call in 0..10_000_u32 {
                    let outcome = if call % 3 == 0 { Outcome::Failed } else { Outcome::Ok };
                    stats.begin(call % 3);
                    stats.finish(call % 3, outcome, 0);
                }
            });
        }
    });
    assert!((0..3).all(|index| stats.outstanding(index) == 0));
    stats.finish(0, Outcome::Ok, 0);
    assert_eq!(stats.consecutive_failures(0), 0);
}

#[test]
fn unreachable_endpoint_is_ejected_at_once_with_exponential_backoff() {
    let stats = stats(1);
    let mut ends = Vec::new();
    for _ in 0..10 {
        stats.finish(0, Outcome::Unreachable, 1000);
        ends.push(stats.ejected_until(0));
    }
    assert_eq!(ends[0], 100_001_000);
    assert!(ends.windows(2).all(|pair| pair[0] <= pair[1]));
    assert_eq!(ends[9], 12_800_001_000);
}

#[test]
fn endpoint_is_ejected_after_third_consecutive_failure() {
    let stats = stats(40);
    let end = |outcome| stats.finish(39, outcome, 1000);
    let seen = || (stats.consecutive_failures(39), stats.ejected_until(39));
    end(Outcome::Failed);
    end(Outcome::Failed);
    end(Outcome::Ok);
    end(Outcome::Failed);
    end(Outcome::Failed);
    end(Outcome::Unknown);
    assert_eq!(seen(), (2, 0));
    end(Outcome::Failed);
    assert_eq!(seen(), (3, 100_001_000));
    stats.finish(38, Outcome::Ok, 1000);
    assert_eq!(seen(), (3, 100_001_000), "a success of another endpoint changes nothing");
    end(Outcome::Ok);
    assert_eq!(seen(), (0, 0));
}

#[test]
fn endpoints_with_recent_failures_are_counted() {
    let stats = stats(3);
    for (index, outcome) in [(0, Outcome::Failed), (0, Outcome::Unreachable), (1, Outcome::Failed)] {
        stats.finish(index, outcome, 1);
    }
    assert_eq!(stats.suspects(), 2);
    stats.clear_failures(0);
    stats.clear_failures(0);
    stats.clear_failures(2);
    assert_eq!(stats.suspects(), 1);
    // After enough responses, the failure has left the window.
    (0..1000).for_each(|_| stats.finish(1, Outcome::Ok, 2));
    assert_eq!(stats.suspects(), 0);
    stats.finish(2, Outcome::Failed, 3);
    let _ = stats.assign_indices([(&InstanceId::new("another").unwrap(), 0)]);
    assert_eq!(stats.suspects(), 0, "a removed instance is no suspect");
}

#[test]
fn overloaded_endpoint_is_ejected_briefly_without_counting_failures() {
    let stats = EndpointStats::default();
    stats.ensure(0);
    for now in 1..=10 {
        stats.begin(0);
        stats.finish(0, Outcome::Overloaded, now);
    }
    assert_eq!((stats.consecutive_failures(0), stats.outstanding(0)), (0, 0));
    assert_eq!(stats.ejected_until(0), 20_000_010);
    stats.begin(0);
    stats.finish(0, Outcome::Ok, 20);
    assert_eq!((stats.ejected_until(0), stats.suspects()), (0, 0), "a call that finishes ends the ejection");
}

#[derive(Debug, Default)]
struct Memory(std::sync::Arc<SharedStats>);

impl SharedBlock for Memory {
    fn stats(&self) -> &SharedStats {
        &self.0
    }

    fn position(&self) -> u32 {
        7
    }
}

#[test]
fn call_counts_in_shared_memory_are_changed_by_kernel_and_proxy() {
    let stats = stats(2);
    stats.begin(1);
    stats.advance_round_robin();
    let memory = std::sync::Arc::new(SharedStats::default());
    let share =
        || stats.share(|_| true, || Some(Box::new(Memory(memory.clone())))).map(SharedBlock::position);
    assert_eq!(stats.share(|_| true, || None).map(SharedBlock::position), None);
    assert_eq!((share(), share()), (Some(7), Some(7)));
    assert_eq!((stats.outstanding(1), stats.round_robin_counter()), (1, 1));
    // Counts in the shared memory, as an eBPF program does.
    memory.block.hot[0].begin();
    memory.block.round_robin.fetch_add(1, Relaxed);
    assert_eq!((stats.outstanding(0), stats.round_robin_counter()), (1, 2));
    stats.finish(0, Outcome::Ok, 0);
    stats.finish(1, Outcome::Ok, 0);
    assert!(memory.block.hot.iter().all(HotStats::is_idle));
    assert_eq!(std::mem::size_of::<SharedStats>(), (16 + 24) * BLOCK_ENDPOINTS + 16);
}

#[test]
fn endpoint_counts_move_out_of_shared_memory_boundedly_often() {
    let stats = stats(1);
    let share = |memory: &std::sync::Arc<SharedStats>| {
        let is_in_use = |shared: &dyn SharedBlock| std::ptr::eq(shared.stats(), &raw const **memory);
        stats.share(is_in_use, || Some(Box::new(Memory(memory.clone())))).is_some()
    };
    let memories: Vec<_> = (0..32).map(|_| std::sync::Arc::new(SharedStats::default())).collect();
    assert!(share(&memories[0]) && share(&memories[0]));
    stats.begin(0);
    assert!(share(&memories[1]));
    memories[1].block.hot[0].begin();
    assert_eq!((stats.outstanding(0), memories[0].block.hot[0].calls()), (2, 1));
    stats.finish(0, Outcome::Ok, 0);
    stats.finish(0, Outcome::Ok, 0);
    assert!(memories[1].block.hot[0].is_idle());
    let moved = memories[2..].iter().take_while(|memory| share(memory)).count();
    assert!((8..30).contains(&moved), "{moved}");
    stats.begin(0);
    stats.unshare(|_| true);
    memories.iter().for_each(|memory| {
        memory.block.hot[0].begin();
    });
    assert_eq!(stats.outstanding(0), 1, "others count elsewhere");
}
