//! What fuzz targets reach and nobody else should: a connection of a program over a stream of the caller's making, served as
//! by a proxy but for who answers.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_client::{BoxError, Fault};
use fairmesh_http::h2::ServerConnection;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, copy, split};

use crate::{
    lean::{self, Ended, Left},
    metrics::Metrics,
    restless::Restless,
    rewound::Rewound,
    stopping::Stopping,
    untaken::{AnswerBody, Answers},
};

/// How long the head of a request may take.
pub const PATIENCE: Duration = Duration::from_secs(75);

/// The body of a request, whichever side of the proxy read it.
pub type RequestBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// Whether a request's connection may carry something else once it is answered; [`serve`] says there what the program does.
pub fn may_switch(request: &Request<RequestBody>) -> bool {
    request.extensions().get::<lean::Switch>().is_some()
}

/// Serves a connection to its end.
pub async fn serve<I, A, F, B>(stream: I, answer: A)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<RequestBody>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Fault> + Unpin + Send + 'static,
{
    let stopping = Stopping::default();
    let own = |request: Request<lean::Upload<ReadHalf<I>>>| answer(boxed(request));
    match lean::serve(split(stream), PATIENCE, &stopping, &own).await {
        Ended::Http2(Left { reader, writer, read }) => http2(reader.unsplit(writer), read, answer).await,
        Ended::Switched(Left { reader, writer, read }, _) => {
            let (mut said, mut hears) = split(Rewound::new(read, reader.unsplit(writer)));
            // How it ended is for the other side to see.
            let _ = copy(&mut said, &mut hears).await;
        }
        Ended::Done | Ended::Broken(_) => {}
    }
}

/// As the proxy serves HTTP/2.
async fn http2<I, A, F, B>(stream: I, read: bytes::BytesMut, answer: A)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<RequestBody>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Fault> + Unpin + Send + 'static,
{
    type Answer<B> = Pin<Box<dyn Future<Output = Response<AnswerBody<B>>> + Send>>;

    let (metrics, answers, restless) =
        (Metrics::default(), Arc::new(Answers::default()), Arc::<Restless>::default());
    let (watched, begun) = (Arc::clone(&answers), Arc::clone(&restless));
    let service = move |request: Request<fairmesh_http::h2::RequestBody>| -> Answer<B> {
        let (answers, waiting) = (Arc::clone(&watched), begun.begin());
        let answer = answer(boxed(request));
        Box::pin(async move {
            let answer = answer.await;
            waiting.answered();
            answers.watch(answer)
        })
    };
    tokio::select! {
        // How it ended is for the other side to see.
        _ = ServerConnection::new(stream, read, service) => {}
        never = answers.look(PATIENCE, &metrics) => match never {},
        () = restless.enough() => {}
    }
}

fn boxed<B>(request: Request<B>) -> Request<RequestBody>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    use http_body_util::BodyExt as _;
    request.map(|body| body.map_err(Into::into).boxed_unsync())
}
