//! Servers of many behaviours, chosen by the path of the request: `/a` to `/k`, and after it the byte that responses consist of.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_calls::{Fault, FaultKind};
use fairmesh_edge::fuzzing::RequestBody;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::{Sleep, sleep};

/// More than any window of default size.
const LARGE: usize = 100_000;

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The body of an answer, step by step.
#[derive(Debug)]
pub(crate) struct Steps {
    left: VecDeque<Step>,
    waiting: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Data(Bytes),
    Trailers,
    Wait(Duration),
    Fail,
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) manner: u8,
    pub(crate) tag: u8,
}

impl Wish {
    /// What a path wishes: `/a5f` of manner `a` with the byte 0x5f.
    pub(crate) fn of(path: &str) -> Self {
        let path = path.as_bytes();
        let tag = path.get(2..4).and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        Self { manner: path.get(1).copied().unwrap_or(b'a'), tag: tag.unwrap_or(b'?') }
    }

    pub(crate) fn path(self) -> String {
        format!("/{}{:02x}", char::from(self.manner), self.tag)
    }

    fn steps(self) -> Vec<Step> {
        let data = |size| Step::Data(Bytes::from(vec![self.tag; size]));
        let second = Step::Wait(Duration::from_secs(1));
        match self.manner {
            b'b' => vec![data(LARGE)],
            b'c' => vec![],
            b'e' => vec![data(1), Step::Fail],
            b'f' => vec![data(1), second.clone(), data(10), second.clone(), data(100), second],
            b'g' => vec![data(10), Step::Trailers],
            _ => vec![data(10)],
        }
    }
}

/// Responds; with manner `d`, only after the request was abandoned.
pub(crate) async fn answer(request: Request<RequestBody>) -> Response<Steps> {
    let (head, mut body) = request.into_parts();
    let wish = Wish::of(head.uri.path());
    let mut steps = wish.steps();
    match wish.manner {
        b'c' | b'b' | b'j' => drop(body),
        // With the body unread: only the deadline of a call ends this.
        b'd' => sleep(DEADLINE).await,
        b'h' | b'k' => {
            let _ = body.frame().await;
            // Somebody holds on to the rest for a while.
            tokio::spawn(async move {
                sleep(Duration::from_secs(1)).await;
                drop(body);
            });
        }
        _ => {
            if let Ok(all) = body.collect().await {
                steps.insert(0, Step::Data(all.to_bytes()));
            }
        }
    }
    Response::new(Steps::of(steps))
}

impl Steps {
    pub(crate) fn of(steps: Vec<Step>) -> Self {
        Self { left: steps.into(), waiting: None }
    }

    fn poll_wait(&mut self, time: Duration, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.waiting.get_or_insert_with(|| Box::pin(sleep(time))).as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(())
    }
}

impl Body for Steps {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        loop {
            let Some(step) = self.left.front().cloned() else { return Poll::Ready(None) };
            if let Step::Wait(time) = step {
                ready!(self.poll_wait(time, context));
            }
            self.left.pop_front();
            return Poll::Ready(Some(match step {
                Step::Wait(_) => continue,
                Step::Data(data) => Ok(Frame::data(data)),
                Step::Trailers => Ok(Frame::trailers(HeaderMap::new())),
                Step::Fail => Err(Fault::new(FaultKind::Reset, "it broke off")),
            }));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let size = |step: &Step| match step {
            Step::Data(data) => Some(data.len() as u64),
            _ => None,
        };
        let sizes: Option<Vec<u64>> = self.left.iter().map(size).collect();
        sizes.map_or_else(SizeHint::new, |sizes| SizeHint::with_exact(sizes.iter().sum()))
    }
}
