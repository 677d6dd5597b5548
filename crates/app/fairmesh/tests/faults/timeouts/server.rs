//! A slow server: the path of each request says how slow. It ignores deadlines unless the path asks it to keep them.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_client::BoxError;
use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Empty, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};

use crate::harness::World;

pub(super) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A gRPC message with arbitrary content.
pub(super) const MESSAGE: &[u8] = b"\x00\x00\x00\x00\x03tea";

pub(super) struct Slow {
    _registered: MeshServer,
    serving: JoinHandle<()>,
    /// Number of floods that have ended, whether complete or dropped.
    pub(super) ended_floods: Arc<AtomicUsize>,
}

/// Counts the end of a flood on drop.
struct Flood(Arc<AtomicUsize>);

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Slow {
    /// Starts the server; returns once callers can learn of it.
    pub(super) async fn start(world: &World, service: &str, protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let builder = MeshServer::builder(service).instance("slow").address(address).protocol(protocol);
        let _registered = builder.agent(world.agent_address()).start().await.unwrap();
        let ended_floods = Arc::<AtomicUsize>::default();
        let floods = Arc::clone(&ended_floods);
        let serving = tokio::spawn(async move {
            loop {
                let stream = TokioIo::new(listener.accept().await.unwrap().0);
                let (builder, floods) = (auto::Builder::new(TokioExecutor::new()), Arc::clone(&floods));
                tokio::spawn(async move {
                    let respond = service_fn(|request| answer(request, Arc::clone(&floods)));
                    let served = builder.serve_connection(stream, respond).await;
                    // Some connections are cut off on purpose.
                    drop(served);
                });
            }
        });
        world.serves(service, "slow").await;
        Self { _registered, serving, ended_floods }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// `count` messages at intervals of `every`, then the end with these trailers; without trailers, the body never ends.
pub(super) fn drip(count: u64, every: Duration, end: Option<HeaderMap>) -> AnyBody {
    let message = move |at: u64| {
        let end = end.clone();
        async move {
            if at < count {
                sleep(every).await;
                return Some((Ok::<_, BoxError>(Frame::data(Bytes::from_static(MESSAGE))), at + 1));
            }
            match end {
                Some(trailers) if at == count => {
                    (!trailers.is_empty()).then(|| (Ok(Frame::trailers(trailers)), at + 1))
                }
                Some(_) => None,
                None => std::future::pending().await,
            }
        }
    };
    StreamBody::new(Box::pin(stream::unfold(0, message))).boxed_unsync()
}

/// An endless body, sent as fast as it is read.
fn flood(ended: Arc<AtomicUsize>) -> AnyBody {
    let pieces = stream::unfold(Flood(ended), |flood| async move {
        Some((Ok::<_, BoxError>(Frame::data(Bytes::from_static(&[b'x'; 16 * 1024]))), flood))
    });
    StreamBody::new(Box::pin(pieces)).boxed_unsync()
}

/// One message, and the end.
fn text(text: &str, trailers: HeaderMap) -> AnyBody {
    let mut message = vec![0];
    message.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
    message.extend_from_slice(text.as_bytes());
    let frames = [Frame::data(Bytes::from(message)), Frame::trailers(trailers)];
    StreamBody::new(stream::iter(frames.map(Ok))).boxed_unsync()
}

fn status(code: u32, words: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.into());
    trailers.insert("grpc-message", HeaderValue::from_static(words));
    trailers
}

/// `/any/drip-20-50` returns 20 messages, one every 50 ms.
async fn answer(
    request: Request<Incoming>,
    ended_floods: Arc<AtomicUsize>,
) -> Result<Response<AnyBody>, Infallible> {
    let (head, body) = request.into_parts();
    let mut words = head.uri.path().rsplit('/').next().unwrap().split('-');
    let what = words.next().unwrap();
    let mut number = || words.next().map_or(0, |number| number.parse::<u64>().unwrap());
    let kind = head.headers.get(CONTENT_TYPE).cloned();
    let is_grpc = kind.as_ref().is_some_and(|kind| kind == "application/grpc");
    let done = || if is_grpc { status(0, "") } else { HeaderMap::new() };
    let told = |name: &str| head.headers.get(name).map_or("-", |value| value.to_str().unwrap());
    let body = match what {
        "drip" => drip(number(), Duration::from_millis(number()), Some(done())),
        "flood" => flood(ended_floods),
        "stall" => drip(1, Duration::ZERO, None),
        "silent" => std::future::pending().await,
        "late" => {
            sleep(Duration::from_millis(number())).await;
            text("at last", done())
        }
        "take" => {
            let length = body.collect().await.map_or(0, |body| body.to_bytes().len());
            text(&length.to_string(), done())
        }
        // Keeps its deadline itself, as gRPC servers do.
        "own" => {
            let left = told("x-fairmesh-deadline").parse().unwrap();
            let began = drip(1, Duration::ZERO, Some(HeaderMap::new()));
            let ended = async move {
                sleep(Duration::from_millis(left)).await;
                Some(Ok(status(4, "the server says so")))
            };
            began.with_trailers(ended).boxed_unsync()
        }
        "told" => text(&format!("{} {}", told("grpc-timeout"), told("x-fairmesh-deadline")), done()),
        _ => Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync(),
    };
    let mut answer = Response::new(body);
    answer.headers_mut().extend(kind.map(|kind| (CONTENT_TYPE, kind)));
    Ok(answer)
}
