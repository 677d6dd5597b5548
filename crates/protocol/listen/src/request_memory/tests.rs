use std::task::Waker;

use super::*;

const MB: usize = 1 << 20;

/// A connection without a user of this machine.
fn remote(connection: u64) -> Holder {
    Holder { connection, user: None }
}

/// Returns the immediate result of a claim.
fn claim(memory: &Memory, connection: u64, bytes: usize) -> Poll<Result<Claim, Exhausted>> {
    claim_of(memory, remote(connection), bytes)
}

fn claim_of(memory: &Memory, holder: Holder, bytes: usize) -> Poll<Result<Claim, Exhausted>> {
    memory.poll_claim(holder, bytes, &mut None, &Context::from_waker(Waker::noop()))
}

#[track_caller]
fn granted(claimed: Poll<Result<Claim, Exhausted>>) -> Claim {
    match claimed {
        Poll::Ready(Ok(claim)) => claim,
        other => panic!("{other:?}"),
    }
}

fn is_revoked(claim: &Claim) -> bool {
    claim.poll_revoked(&Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn connection_waits_at_its_own_request_memory_maximum() {
    let memory = Memory::default();
    let mut held: Vec<_> = (0..4).map(|_| granted(claim(&memory, 1, 4 * MB))).collect();
    assert!(claim(&memory, 1, 4 * MB).is_pending());
    assert_eq!(memory.used(), 16 * MB);
    drop(held.pop());
    held.push(granted(claim(&memory, 1, 4 * MB)));
    drop(held);
    assert_eq!(memory.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn flooding_connection_loses_memory_claims_to_others() {
    let memory = Memory::default();
    let flood: Vec<_> = (0..16).map(|n| granted(claim(&memory, n / 4, 4 * MB))).collect();
    assert_eq!(memory.used(), memory.total());
    let honest = granted(claim(&memory, 9, 4 * MB));
    assert_eq!(flood.iter().filter(|claim| is_revoked(claim)).count(), 1);
    assert_eq!(memory.used(), memory.total());
    assert!(!is_revoked(&honest));
}

#[tokio::test(start_paused = true)]
async fn oldest_equal_memory_claim_is_revoked_unless_request_is_complete() {
    let memory = Memory::default();
    let claims: Vec<_> = (0..16).map(|n| granted(claim(&memory, n, 4 * MB))).collect();
    claims[0].complete();
    assert!(claim(&memory, 20, 4 * MB).is_pending(), "no claim is old enough");
    tokio::time::advance(REVOCABLE_AGE).await;
    let _new = granted(claim(&memory, 20, 4 * MB));
    let revoked: Vec<_> = claims.iter().map(is_revoked).collect();
    assert!(!revoked[0] && revoked[1] && !revoked[2..].contains(&true), "{revoked:?}");
}

#[tokio::test(start_paused = true)]
async fn memory_claims_beyond_limit_of_waiting_requests_are_refused() {
    let memory = Memory::default();
    let _held = granted(claim(&memory, 1, BOUNDS.per_connection));
    let cx = Context::from_waker(Waker::noop());
    let mut waiting: Vec<_> = (0..MAX_WAITING_PER_CONNECTION).map(|_| None).collect();
    for one in &mut waiting {
        assert!(memory.poll_claim(remote(1), 1, one, &cx).is_pending());
    }
    assert!(matches!(memory.poll_claim(remote(1), 1, &mut None, &cx), Poll::Ready(Err(Exhausted))));
    waiting.pop();
    assert!(memory.poll_claim(remote(1), 1, &mut None, &cx).is_pending(), "one stopped waiting");
    let _other = granted(claim(&memory, 2, BOUNDS.per_connection));
}

#[tokio::test(start_paused = true)]
async fn unidentified_peers_have_smaller_message_limits() {
    let memory = Memory::of_unknown_peers();
    assert!(
        matches!(claim(&memory, 1, MB), Poll::Ready(Err(Exhausted))),
        "no join has a message of this size"
    );
    let held: Vec<_> = (0..32).map(|n| granted(claim(&memory, n, UNKNOWN_BOUNDS.per_connection))).collect();
    assert_eq!((memory.used(), held.len()), (memory.total(), 32));
    assert!(memory.claim_wait(remote(1), 1).is_none());
}

#[tokio::test(start_paused = true)]
async fn connections_of_one_user_take_at_most_half_of_request_memory() {
    let memory = Memory::default();
    let of = |user: u32, connection: u64| Holder { connection, user: Some(user) };
    let flood: Vec<_> = (0..1024).map(|n| granted(claim_of(&memory, of(7, n), MB / 32))).collect();
    assert_eq!(memory.used(), BOUNDS.per_user);
    assert!(claim_of(&memory, of(7, 2000), MB).is_pending(), "its other connections wait");
    let honest: Vec<_> = (0..8).map(|n| granted(claim_of(&memory, of(8, 3000 + n), 4 * MB))).collect();
    assert_eq!(memory.used(), memory.total());
    assert!(!flood.iter().chain(&honest).any(is_revoked), "there was room for both");
    let third = granted(claim_of(&memory, of(9, 4000), 4 * MB));
    assert_eq!(honest.iter().filter(|claim| is_revoked(claim)).count(), 1, "it holds most of a connection");
    assert!(!is_revoked(&third));
}

#[tokio::test(start_paused = true)]
async fn user_with_largest_memory_total_loses_claims_first() {
    let memory = Memory::default();
    let flood = |n: u64| Holder { connection: n, user: Some(7) };
    let small: Vec<_> = (0..512).map(|n| granted(claim_of(&memory, flood(n), MB / 32))).collect();
    let large: Vec<_> = (0..12).map(|n| granted(claim(&memory, 1000 + n, 4 * MB))).collect();
    assert_eq!(memory.used(), memory.total());
    let _honest = granted(claim(&memory, 2000, MB));
    assert_eq!(small.iter().filter(|claim| is_revoked(claim)).count(), 32);
    assert!(!large.iter().any(is_revoked), "each connection holds more, and less than that user");
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_of_one_user_leave_memory_for_others() {
    let memory = Memory::default();
    let cx = Context::from_waker(Waker::noop());
    let of = |user: u32, connection: u64| Holder { connection, user: Some(user) };
    let _held: Vec<_> = (0..8).map(|n| granted(claim_of(&memory, of(7, n), 4 * MB))).collect();
    let _others: Vec<_> = (0..8).map(|n| granted(claim_of(&memory, of(8, 10 + n), 4 * MB))).collect();
    let mut waiting: Vec<_> = (0..MAX_WAITING_PER_USER).map(|_| None).collect();
    for (n, one) in waiting.iter_mut().enumerate() {
        assert!(memory.poll_claim(of(7, 100 + n as u64), 4 * MB, one, &cx).is_pending());
    }
    let refused = memory.poll_claim(of(7, 999), 4 * MB, &mut None, &cx);
    assert!(matches!(refused, Poll::Ready(Err(Exhausted))));
    assert!(memory.poll_claim(of(8, 1000), 4 * MB, &mut None, &cx).is_pending());
}

#[tokio::test(start_paused = true)]
async fn stuck_connections_lose_memory_claims_to_others_of_same_user() {
    let memory = Memory::default();
    let of = |connection: u64| Holder { connection, user: Some(7) };
    let stuck = [1, 2].map(|n| granted(claim_of(&memory, of(n), BOUNDS.per_connection)));
    let other = granted(claim(&memory, 9, BOUNDS.per_connection));
    let honest = granted(claim_of(&memory, of(3), MB));
    assert_eq!(stuck.iter().filter(|claim| is_revoked(claim)).count(), 1);
    assert!(!is_revoked(&other), "another user's");
    let large: Vec<_> = (0..4).map(|n| claim_of(&memory, of(4 + n), 4 * MB)).collect();
    assert!(large.iter().all(Poll::is_ready) && !is_revoked(&honest));
}
