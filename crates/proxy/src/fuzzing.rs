//! What fuzz targets reach and nobody else should: a connection of a program over a stream of the caller's making, served as
//! by a proxy but for who answers.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_client::{BoxError, Fault};
use http::{Request, Response, Version};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, split};

use crate::{
    flood::{Counted, Flood},
    lean::{self, Ended},
    metrics::Metrics,
    restless::Restless,
    rewound::Rewound,
    serve::builder,
    stopping::Stopping,
    untaken::{AnswerBody, Answers},
};

/// How long the head of a request may take.
pub const PATIENCE: Duration = Duration::from_secs(75);

/// The body of a request, whichever side of the proxy read it.
pub type RequestBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

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
    if let Ended::Beyond(reader, writer, read) = lean::serve(split(stream), PATIENCE, &stopping, &own).await {
        hyper(reader.unsplit(writer), read, answer).await;
    }
}

/// As the proxy leaves connections to hyper.
async fn hyper<I, A, F, B>(stream: I, read: bytes::BytesMut, answer: A)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<RequestBody>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Fault> + Unpin + Send + 'static,
{
    let (metrics, flood, restless) =
        (Metrics::default(), Arc::<Flood>::default(), Arc::<Restless>::default());
    let answers = Arc::new(Answers::default());
    let stream = Counted::new(Rewound::new(read, stream), Arc::clone(&flood));
    let (watched, begun) = (Arc::clone(&answers), Arc::clone(&restless));
    let service = service_fn(move |request: Request<Incoming>| {
        let (answers, waiting, version) = (Arc::clone(&watched), begun.begin(), request.version());
        let answer = answer(boxed(request));
        async move {
            let answer = answer.await;
            waiting.answered();
            Ok::<_, Infallible>(match version {
                Version::HTTP_2 => answers.watch(answer),
                _ => answer.map(AnswerBody::Plain),
            })
        }
    });
    let builder = builder(PATIENCE);
    let connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    tokio::select! {
        // How it ended is for the other side to see.
        _ = connection => {}
        () = answers.look(PATIENCE, &metrics) => {}
        () = restless.enough() => {}
        () = flood.enough() => {}
    }
}

fn boxed<B>(request: Request<B>) -> Request<RequestBody>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    use http_body_util::BodyExt as _;
    request.map(|body| body.map_err(Into::into).boxed_unsync())
}
