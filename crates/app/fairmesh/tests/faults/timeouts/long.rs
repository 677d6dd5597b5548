//! Streams, long polls and transfers that take minutes under the default policy. Runs for seconds, or for
//! `SOAK_MINUTES`.

use std::{env, time::Duration};

use bytes::Bytes;
use fairmesh_client::{Body, BoxError, ServiceHandle};
use http::{Request, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    Mesh,
    server::{AnyBody, drip},
};
use crate::harness::beside_others;

/// Interval between the pieces of a transfer.
const OFTEN: Duration = Duration::from_millis(100);

/// Duration of each call, in seconds.
#[derive(Clone, Copy)]
struct Terms {
    stream: u64,
    poll: u64,
    transfer: u64,
    /// Whether to wait for default timeouts too, which takes a quarter of a minute.
    cuts: bool,
}

impl Terms {
    fn of_environment() -> Self {
        match env::var("SOAK_MINUTES").ok().and_then(|minutes| minutes.parse::<u64>().ok()) {
            Some(minutes) => {
                Self { stream: 60 * minutes.min(10), poll: 60, transfer: 60 * minutes.min(2), cuts: true }
            }
            None => Self { stream: 2, poll: 2, transfer: 2, cuts: false },
        }
    }
}

/// Path of calls to the servers.
#[derive(Clone)]
enum Way {
    Library(ServiceHandle),
    Proxy(Box<Client<HttpConnector, AnyBody>>, String, &'static str),
}

/// A caller, with its service, path and protocol.
#[derive(Clone)]
struct Caller {
    name: String,
    way: Way,
    is_grpc: bool,
}

impl Caller {
    async fn call(&self, path: &str, body: AnyBody) -> Result<Response<AnyBody>, BoxError> {
        let mut request = Request::post(format!("/any/{path}")).body(body)?;
        if self.is_grpc {
            request.headers_mut().insert(CONTENT_TYPE, "application/grpc".parse()?);
            request.headers_mut().insert("te", "trailers".parse()?);
        }
        match &self.way {
            Way::Library(service) => {
                let response = service.send(request).await?;
                Ok(response.map(|body: Body| body.map_err(Into::into).boxed_unsync()))
            }
            Way::Proxy(client, to, host) => {
                *request.uri_mut() = format!("http://{to}/any/{path}").parse()?;
                request.headers_mut().insert("host", host.parse()?);
                let response = client.request(request).await?;
                Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
            }
        }
    }

    /// Body of a response, and the duration of the call.
    async fn whole(&self, path: &str, body: AnyBody) -> Result<(Bytes, Duration), BoxError> {
        let began = Instant::now();
        let response = self.call(path, body).await?;
        let status = response.status();
        let body = response.into_body().collect().await?;
        if self.is_grpc && body.trailers().is_none_or(|trailers| trailers["grpc-status"] != "0") {
            return Err(format!("{path}: {:?}", body.trailers()).into());
        }
        match status.is_success() {
            true => Ok((body.to_bytes(), began.elapsed())),
            false => Err(format!("{path}: {status} {:?}", body.to_bytes()).into()),
        }
    }

    /// Makes all calls concurrently.
    async fn go(self, terms: Terms) {
        let Terms { stream, poll, transfer, cuts } = terms;
        let pieces = transfer * 1000 / OFTEN.as_millis() as u64;
        let nothing = || drip(0, OFTEN, Some(Default::default()));
        let upload = drip(pieces, OFTEN, Some(Default::default()));
        let paths = [
            format!("drip-{stream}-1000"),
            format!("late-{}", 1000 * poll),
            format!("drip-{pieces}-{}", OFTEN.as_millis()),
        ];
        let silence = async {
            // gRPC streams may be silent for an hour.
            if cuts && !self.is_grpc {
                let began = Instant::now();
                let cut = timeout(Duration::from_secs(40), self.whole("stall", nothing())).await;
                assert!(matches!(cut, Ok(Err(_))), "{}: {cut:?}", self.name);
                assert!(began.elapsed() >= Duration::from_secs(15), "{}: {:?}", self.name, began.elapsed());
                println!("{}: cut after {:?} of silence", self.name, began.elapsed());
            }
        };
        let (streamed, polled, downloaded, uploaded, ()) = tokio::join!(
            self.whole(&paths[0], nothing()),
            self.whole(&paths[1], nothing()),
            self.whole(&paths[2], nothing()),
            self.whole("take", upload),
            silence,
        );
        let of = |what: Result<(Bytes, Duration), BoxError>| {
            what.unwrap_or_else(|error| panic!("{}: {error}", self.name))
        };
        let (streamed, polled, downloaded, uploaded) =
            (of(streamed), of(polled), of(downloaded), of(uploaded));
        assert_eq!(streamed.0.len() as u64, 8 * stream, "{}", self.name);
        assert_eq!(downloaded.0.len() as u64, 8 * pieces, "{}", self.name);
        assert!(polled.0.ends_with(b"at last"), "{}: {:?}", self.name, polled.0);
        assert_eq!(uploaded.0[5..], *(8 * pieces).to_string().as_bytes(), "{}", self.name);
        println!(
            "{}: a stream of {:?}, a poll of {:?}, a download of {:?}, an upload of {:?}",
            self.name, streamed.1, polled.1, downloaded.1, uploaded.1
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_polls_and_transfers_outlive_every_default_timeout() {
    let _machine = beside_others().await;
    let (mesh, terms) = (Mesh::start("").await, Terms::of_environment());
    let library = mesh.world.mesh().await;
    let mut calls = JoinSet::new();
    for (service, host, http2) in
        [("shop/one", "one.shop", false), ("shop/two", "two.shop", true), ("shop/rpc", "rpc.shop", true)]
    {
        let is_grpc = service == "shop/rpc";
        let client = Client::builder(TokioExecutor::new()).http2_only(http2).build_http();
        let proxied = Way::Proxy(Box::new(client), mesh.proxy.by_host.clone(), host);
        for (over, way) in [("proxy", proxied), ("library", Way::Library(library.service(service).unwrap()))]
        {
            calls.spawn(Caller { name: format!("{service} over {over}"), way, is_grpc }.go(terms));
        }
    }
    while let Some(ended) = calls.join_next().await {
        ended.unwrap();
    }
}
