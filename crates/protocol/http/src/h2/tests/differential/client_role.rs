//! The client role and h2 send the same requests to hyper's server; the client role also sends them to this server,
//! over pipes of any size. All three must get the same responses.

use std::task::Poll;

use http::uri::Authority;

use super::{
    super::super::{self as http2, Call, Capacity, ClientConnection, Shared, StreamError},
    *,
};

/// The limit before the server's SETTINGS. No scenario sets the same value.
const INITIAL_LIMIT: u32 = 100;

/// The request body, in the same pieces as for h2.
fn body_of_request(spec: &TestRequest) -> ResponseBody {
    let pieces = spec.body.iter().enumerate();
    let pieces: Vec<_> = pieces.map(|(n, length)| Bytes::from(vec![b'a' + n as u8 % 26; *length])).collect();
    match &pieces[..] {
        _ if spec.trailers => {
            let trailers = Frame::trailers(trailers());
            let frames: Vec<_> = pieces.into_iter().map(Frame::data).chain([trailers]).map(Ok).collect();
            StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
        }
        [] => whole(Bytes::new()),
        [one] => whole(one.clone()),
        _ if pieces.iter().all(Bytes::is_empty) => whole(Bytes::new()),
        _ => {
            let frames: Vec<_> = pieces.into_iter().map(Frame::data).map(Ok).collect();
            StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
        }
    }
}

/// Begins a call as soon as there is capacity.
async fn begin(session: &Shared, request: &Request<()>, body: ResponseBody) -> Call<ResponseBody> {
    let ends = body.is_end_stream();
    let call = std::future::poll_fn(|context| {
        let locked = lock(session);
        // Calls wait for the server's SETTINGS too.
        if locked.capacity() == Capacity::Full || locked.stream_limit() == INITIAL_LIMIT {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        assert_eq!(locked.capacity(), Capacity::Available);
        let (method, headers) = (request.method(), request.headers());
        let path = request.uri().path_and_query().unwrap().as_str();
        let spec =
            http2::RequestHead { method, authority: &Authority::from_static("one.shop"), path, headers };
        Poll::Ready(Call::begin(session, locked, &spec, ends))
    })
    .await;
    if ends { call } else { call.with(body) }
}

async fn perform(session: Shared, spec: TestRequest) -> Observed {
    let called = begin(&session, &request(&spec), body_of_request(&spec)).await;
    let (response, upload) = match called.await {
        Ok(answered) => answered,
        Err(http2::CallError::Stream(StreamError::Reset(reason))) => {
            return Observed { reset: Some(Reason::from(reason.0)), ..Observed::nothing() };
        }
        Err(other) => panic!("{other:?}"),
    };
    let uploading = upload.map(tokio::spawn);
    let (mut head, mut body) = response.into_parts();
    head.headers.remove("date");
    head.headers.remove("content-length");
    let mut heard = Observed { status: Some(head.status), headers: head.headers, ..Observed::nothing() };
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => whole.extend_from_slice(&data),
            Ok(Err(frame)) => heard.trailers = frame.into_trailers().ok(),
            Err(StreamError::Reset(reason)) => heard.reset = Some(Reason::from(reason.0)),
            Err(other) => panic!("{other:?}"),
        }
        if heard.reset.is_some() {
            break;
        }
    }
    heard.body = whole.freeze();
    if let Some(uploading) = uploading {
        // The upload runs to its end, or until the stream is reset.
        uploading.await.unwrap();
    }
    heard
}

async fn run(scenario: &Scenario, near: DuplexStream, mutant: Option<Mutant>) -> Vec<Observed> {
    let connection = ClientConnection::new(near);
    let session = connection.session();
    lock(&session).mutant = mutant;
    let driving = tokio::spawn(connection);
    let requests = scenario.requests.iter().map(|one| perform(Shared::clone(&session), one.clone()));
    let heard = futures_util::future::join_all(requests).await;
    lock(&session).retire();
    driving.await.unwrap();
    heard
}

/// Runs hyper's server with the windows and frame sizes of the scenario.
async fn serve_with_hyper(stream: DuplexStream, scenario: Scenario, limit: u32) {
    let service =
        hyper::service::service_fn(|request| async { Ok::<_, Infallible>(response(request).await) });
    let _ = Builder::new(TokioExecutor::new())
        .initial_stream_window_size(scenario.window)
        .initial_connection_window_size(scenario.connection_window)
        .max_frame_size(scenario.frame)
        .max_concurrent_streams(limit)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Returns the results of h2 with hyper's server, and of the client role with hyper's server and with this one.
fn all(scenario: &Scenario, limit: u32, mutant: Option<Mutant>) -> [Vec<Observed>; 3] {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (near, far) = duplex(1 << 16);
        // A high limit, since h2 sends requests before it has received SETTINGS.
        let serving = tokio::spawn(serve_with_hyper(far, scenario.clone(), 1000));
        let by_h2 = in_time("h2", super::run(scenario, near)).await;
        in_time("hyper's", serving).await.unwrap();

        let (near, far) = duplex(1 << 16);
        let serving = tokio::spawn(serve_with_hyper(far, scenario.clone(), limit));
        let by_ours = in_time("ours", run(scenario, near, mutant)).await;
        in_time("hyper's", serving).await.unwrap();

        let (near, far) = duplex(scenario.pipe);
        let serving = tokio::spawn(serve_with_own(far, None));
        let of_ours = in_time("own client, own server", run(scenario, near, mutant)).await;
        in_time("own server", serving).await.unwrap();
        [by_h2, by_ours, of_ours]
    })
}

/// Reports differences between the three combinations.
fn compare(scenario: &Scenario, limit: u32, mutant: Option<Mutant>) -> Result<(), TestCaseError> {
    let [h2, serve_with_own, of_ours] = all(scenario, limit, mutant);
    for (n, spec) in scenario.requests.iter().enumerate() {
        let breaks = matches!(spec.manner, Behaviour::Breaks);
        for heard in [&serve_with_own[n], &of_ours[n]] {
            // Unsent frames of a stream that is reset may be dropped.
            let alike = *heard == h2[n] || breaks && heard.reset == h2[n].reset;
            prop_assert!(alike, "{heard:?} and {:?} of {spec:?}", h2[n]);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn http2_client_behaves_like_h2_crate(scenario in any_scenarios(), limit in 1..30_u32) {
        compare(&scenario, limit, None)?;
    }
}

#[test]
fn comparison_with_h2_detects_every_client_mutant() {
    for mutant in [
        Mutant::MisroutesBody,
        Mutant::DropsTrailers,
        Mutant::IgnoresWindow,
        Mutant::DropsEndStream,
        Mutant::DropsField,
    ] {
        let mut dice = TestRunner::deterministic();
        let found = (0..64).any(|_| {
            let scenario = any_scenarios().new_tree(&mut dice).unwrap().current();
            let compared = panic::catch_unwind(|| compare(&scenario, 7, Some(mutant)));
            !matches!(compared, Ok(Ok(()))) && compare(&scenario, 7, None).is_ok()
        });
        assert!(found, "{mutant:?}");
    }
}
