use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use fairmesh_signals::ServedCall;
use pin_project_lite::pin_project;

/// The call that the server is processing, as the parent of the calls that are made for it.
///
/// Reports of calls name their parent, so that the control plane knows the call graph (`fairmesh traffic graph`). Calls that a
/// handler makes in its own future have the right parent without this. A task that it spawns, or another thread, gets the
/// parent from the handler:
///
/// ```
/// # use fairmesh_server::ParentCall;
/// # async fn call_the_stock() {}
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let parent = ParentCall::current();
/// tokio::spawn(parent.scope(async {
///     call_the_stock().await; // counts as made for the call that the handler processes
/// }));
/// # }
/// ```
///
/// They also carry the origin of the chain of calls, by which CPU is attributed (`fairmesh cost`).
///
/// Where no call is processed, such as in a timer of the program, it is no parent: calls in its scope are demand of their own.
/// Exclusive times of a call do not see the calls of other tasks.
#[derive(Clone, Copy, Debug)]
pub struct ParentCall(ServedCall);

impl ParentCall {
    /// The call whose future is polled now.
    pub fn current() -> Self {
        Self(ServedCall::new(ServedCall::current_node(), ServedCall::current_origin()))
    }

    /// Makes it the parent of calls that `future` makes while it is polled.
    pub fn scope<F: Future>(self, future: F) -> ParentScope<F> {
        ParentScope { future, call: self.0 }
    }
}

pin_project! {
    /// The future of [`ParentCall::scope`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ParentScope<F> {
        #[pin]
        future: F,
        call: ServedCall,
    }
}

impl<F: Future> Future for ParentScope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.call.enter();
        this.future.poll(cx)
    }
}
