//! Requests of one connection, passed on without being taken apart where nobody needs that.

use std::{ops::Range, sync::Arc, task::Context};

use fairmesh_client::{
    Body, EndpointTarget,
    proxy_support::{FastCall, SlowCall},
};
use fairmesh_http::h1::{LEAST_READ, PlainAnswer, PlainRequest, no_fields};
use http::{Request, Response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use super::{Forwarder, Origin, for_program, for_server, region_of};
use crate::{
    answer,
    lean::{Answer, Broken, Connection, Upload},
    metrics::Held,
    service::Target,
    stopping::Stopping,
};

/// How much may follow a large body, in bytes, for it to be forgotten: what follows is moved for that.
const FEW: usize = 4 * 1024;

/// Answers what comes over one connection.
#[derive(Debug)]
pub(crate) struct Answering<'a> {
    forwarder: &'a Forwarder,
    origin: &'a Origin,
}

/// A call that has begun with a plain request: passed on, or to go on otherwise.
type Begun<'a> = Result<FastCall<'a>, Box<SlowCall<'a>>>;

impl<'a> Answering<'a> {
    pub(crate) fn new(forwarder: &'a Forwarder, origin: &'a Origin) -> Self {
        Self { forwarder, origin }
    }

    /// Begins a call with the request that lies first in `input`, and says where its body lies, which it ends with; `None` where it
    /// is not plain or somebody wants to see more of it.
    #[inline]
    fn begin<'b>(
        &self,
        input: &[u8],
        target: &'b mut Option<Arc<Target>>,
        began: Instant,
    ) -> Option<(Begun<'b>, &'b Arc<Target>, Range<usize>)> {
        let Self { forwarder, origin } = self;
        if origin.captured.is_some() {
            return None;
        }
        let mut room = no_fields();
        let request = PlainRequest::read(input, &mut room)?;
        let request = tell_scheme(request, origin.over_tls)?;
        let target = &*target.insert(forwarder.target_of(request.host, origin).ok()?);
        if request.body.len() as u64 > forwarder.max_body || forwarder.seeing.wants(target, began) {
            return None;
        }
        let begun = target.handle.try_fast(&request, origin.service.is_some(), began)?;
        Some((begun, target, request.length - request.body.len()..request.length))
    }
}

/// Tells the server what [`hops::tell_scheme`](crate::hops::tell_scheme) does; `None` where something is to be taken away for that.
fn tell_scheme(request: PlainRequest<'_>, over_tls: bool) -> Option<PlainRequest<'_>> {
    const NAME: &str = "x-forwarded-proto";
    let is_told = request.values(NAME).next().is_some();
    match (over_tls, is_told) {
        (true, true) => None,
        (false, true) => Some(request),
        (true, false) => Some(request.with(NAME, "https")),
        (false, false) => Some(request.with(NAME, "http")),
    }
}

impl<R: AsyncRead + Unpin + Send + 'static> Answer<R> for Answering<'_> {
    type Body = Body;

    async fn answer(&self, request: Request<Upload<R>>) -> Response<Body> {
        self.forwarder.answer(request, self.origin).await
    }

    fn passes(&self) -> bool {
        self.origin.captured.is_none() && !self.forwarder.seeing.sees_all()
    }

    async fn pass<W>(
        &self,
        connection: &mut Connection<R, W>,
        stopping: &Stopping,
    ) -> Result<Option<bool>, Broken>
    where
        W: AsyncWrite + Unpin,
    {
        let (began, mut target) = (Instant::now(), None);
        let Some((mut begun, target, body)) = self.begin(connection.input(), &mut target, began) else {
            return Ok(None);
        };
        let apart = {
            let _under_way = Held::new(&target.golden.under_way);
            // Looked at where it lies: with a second place for it, every connection would keep room for both.
            if let Ok(passage) = &mut begun {
                let length = body.end;
                let worthwhile = body.len() > LEAST_READ && connection.input().len() - length <= FEW;
                if worthwhile && passage.drop_body() {
                    connection.forget(body);
                }
                let passed = connection.wait(length, |mut reply, context| {
                    let take =
                        |answer: &PlainAnswer<'_>, server: &EndpointTarget, context: &mut Context<'_>| {
                            let closes = stopping.is_told();
                            let region = Some(&server.location.region);
                            target.golden.answers.answered(region, answer.status, began.elapsed());
                            (!closes, reply.send(answer, closes, context))
                        };
                    passage.poll(take, context)
                });
                if let Some((persistent, sent)) = passed.await? {
                    // The server has done its part, however long the program takes for its own.
                    if let Ok(passage) = begun {
                        passage.end();
                    }
                    connection.answered(sent?, length).await?;
                    return Ok(Some(persistent));
                }
            }
            begun.map_or_else(|apart| *apart, FastCall::into_slow)
        };
        let (forwarder, origin) = (self.forwarder, self.origin);
        let answer = |request| forwarder.go_on(request, origin, target, (apart, began));
        Box::pin(connection.take_apart(answer, stopping)).await.map(Some)
    }
}

impl Forwarder {
    /// Answers a plain request whose call goes on as one that is taken apart.
    async fn go_on<R>(
        &self,
        request: Request<Upload<R>>,
        origin: &Origin,
        target: &Target,
        (apart, began): (SlowCall<'_>, Instant),
    ) -> Response<Body>
    where
        R: AsyncRead + Unpin + Send + 'static,
    {
        let _under_way = Held::new(&target.golden.under_way);
        let (mut head, body) = request.into_parts();
        for_server(&mut head, origin);
        let answer = match apart.send(Request::from_parts(head, body)).await {
            Ok(mut answer) => {
                for_program(&mut answer);
                answer
            }
            Err(fault) => {
                self.faulted(&fault, origin, target);
                answer::of_fault(&fault, None)
            }
        };
        target.golden.answers.answered(region_of(&answer), answer.status(), began.elapsed());
        answer
    }
}
