use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use fairmesh_signals::ServedCall;
use pin_project_lite::pin_project;

/// The call that the server is processing, as the parent of the calls made on its behalf.
///
/// Traffic reports name the parent of each call, so that the control plane knows the call graph (`fairmesh traffic
/// graph`). Calls that a handler makes in its own future get the right parent automatically. A task or thread that the
/// handler spawns must be given the parent:
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
/// Calls in the scope also carry the origin of the call chain, to which CPU time is attributed (`fairmesh cost`).
///
/// If no call is being processed, for example in a timer of the program, this is no parent: calls in its scope count as
/// demand of their own. The exclusive time of a call includes the time of calls in other tasks.
#[derive(Clone, Copy, Debug)]
pub struct ParentCall(ServedCall);

impl ParentCall {
    /// Returns the call whose future is currently being polled.
    pub fn current() -> Self {
        Self(ServedCall::new(ServedCall::current_node(), ServedCall::current_origin()))
    }

    /// Makes this the parent of calls that `future` makes while it is polled.
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
