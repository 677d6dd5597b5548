//! Memory of requests that were answered, for those that come.
//!
//! A request in the making is larger than what allocators keep at hand, and lies in memory of its own, so that those that are
//! under way are small where they wait.

use std::{
    cell::RefCell,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use tokio_util::sync::ReusableBoxFuture;

use crate::{streams::Streamed, untaken::AnswerBody};

type Answer = Response<AnswerBody<Streamed>>;

/// The most places that a thread keeps, of a few KB each: as many as one connection may have requests under way.
const MOST: usize = 256;

thread_local! {
    static PLACES: RefCell<Vec<ReusableBoxFuture<'static, Answer>>> = const { RefCell::new(Vec::new()) };
}

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Recycled(Option<ReusableBoxFuture<'static, Answer>>);

impl Recycled {
    pub(crate) fn new(making: impl Future<Output = Answer> + Send + 'static) -> Self {
        let place = PLACES.with_borrow_mut(Vec::pop);
        Self(Some(match place {
            Some(mut place) => {
                place.set(making);
                place
            }
            None => ReusableBoxFuture::new(making),
        }))
    }
}

impl Future for Recycled {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        // Not asked again once it is there.
        let Some(making) = &mut self.0 else { return Poll::Pending };
        let answer = ready!(making.poll(context));
        if let Some(place) = self.0.take() {
            PLACES.with_borrow_mut(|places| {
                if places.len() < MOST {
                    places.push(place);
                }
            });
        }
        Poll::Ready(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc, task::Waker};

    use fairmesh_client::Body;

    use super::*;

    async fn making(_held: Arc<()>) -> Answer {
        let answer = Streamed::answer(Response::new(Body::empty()), &Arc::default());
        answer.map(AnswerBody::Plain)
    }

    fn poll(making: &mut Recycled) -> Poll<Answer> {
        Pin::new(making).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn places() -> usize {
        PLACES.with_borrow(Vec::len)
    }

    #[test]
    fn what_is_over_makes_place_and_holds_nothing() {
        let held = Arc::new(());
        for _ in 0..3 {
            let mut made = Recycled::new(making(Arc::clone(&held)));
            assert_eq!(places(), 0);
            assert!(poll(&mut made).is_ready());
            assert_eq!((places(), Arc::strong_count(&held)), (1, 1));
        }
    }

    #[test]
    fn what_is_given_up_is_dropped_and_no_more_is_kept_than_a_few() {
        let held = Arc::new(());
        let waits = Arc::clone(&held);
        let mut given_up = Recycled::new(async move {
            let _held = waits;
            pending().await
        });
        assert!(poll(&mut given_up).is_pending());
        drop(given_up);
        assert_eq!((places(), Arc::strong_count(&held)), (0, 1));
        let mut all: Vec<_> = (0..2 * MOST).map(|_| Recycled::new(making(Arc::clone(&held)))).collect();
        assert!(all.iter_mut().all(|made| poll(made).is_ready()));
        assert_eq!((places(), Arc::strong_count(&held)), (MOST, 1));
    }
}
