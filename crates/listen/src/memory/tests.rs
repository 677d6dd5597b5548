use std::task::Waker;

use super::*;

const MB: usize = 1 << 20;

/// What a claim that does not find room comes to at once.
fn claim(memory: &Memory, connection: u64, bytes: usize) -> Poll<Result<Claim, Exhausted>> {
    memory.poll_claim(connection, bytes, &mut None, &Context::from_waker(Waker::noop()))
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
async fn one_connection_holds_its_part_and_waits_for_more() {
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
async fn one_that_floods_loses_to_others() {
    let memory = Memory::default();
    let flood: Vec<_> = (0..16).map(|n| granted(claim(&memory, n / 4, 4 * MB))).collect();
    assert_eq!(memory.used(), memory.total());
    let honest = granted(claim(&memory, 9, 4 * MB));
    assert_eq!(flood.iter().filter(|claim| is_revoked(claim)).count(), 1);
    assert_eq!(memory.used(), memory.total());
    assert!(!is_revoked(&honest));
}

#[tokio::test(start_paused = true)]
async fn among_equals_an_old_claim_is_taken_back_and_none_of_what_is_handled() {
    let memory = Memory::default();
    let claims: Vec<_> = (0..16).map(|n| granted(claim(&memory, n, 4 * MB))).collect();
    claims[0].complete();
    assert!(claim(&memory, 20, 4 * MB).is_pending(), "all are new");
    tokio::time::advance(OLD).await;
    let _new = granted(claim(&memory, 20, 4 * MB));
    let revoked: Vec<_> = claims.iter().map(is_revoked).collect();
    assert!(!revoked[0] && revoked[1] && !revoked[2..].contains(&true), "{revoked:?}");
}

#[tokio::test(start_paused = true)]
async fn so_many_wait_and_the_next_is_refused() {
    let memory = Memory::default();
    let _held = granted(claim(&memory, 1, OF_ONE));
    let cx = Context::from_waker(Waker::noop());
    let mut waiting: Vec<_> = (0..WAITING_OF_ONE).map(|_| None).collect();
    for one in &mut waiting {
        assert!(memory.poll_claim(1, 1, one, &cx).is_pending());
    }
    assert!(matches!(memory.poll_claim(1, 1, &mut None, &cx), Poll::Ready(Err(Exhausted))));
    waiting.pop();
    assert!(memory.poll_claim(1, 1, &mut None, &cx).is_pending(), "a place has become free");
    let _other = granted(claim(&memory, 2, OF_ONE));
}
