//! Our side and h2 ask the same of hyper's server, and ours of our own over pipes of any size: all must hear the same.

use std::task::Poll;

use http::uri::Authority;

use super::{
    super::super::{self as http2, Call, Lost, Outbound, Place, Shared},
    *,
};

/// The calls that are made before a server has said how many it allows; none of these says just that.
const UNSAID: u32 = 100;

/// The body of a request, in the pieces in which h2 is given it.
fn body_of_request(ask: &Ask) -> AnswerBody {
    let pieces = ask.body.iter().enumerate();
    let pieces: Vec<_> = pieces.map(|(n, length)| Bytes::from(vec![b'a' + n as u8 % 26; *length])).collect();
    match &pieces[..] {
        _ if ask.trailers => {
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

/// Begins a call as soon as there is a place for it.
async fn begin(session: &Shared, request: &Request<()>, body: AnswerBody) -> Call<AnswerBody> {
    let ends = body.is_end_stream();
    let call = std::future::poll_fn(|context| {
        let locked = lock(session);
        // Nor before the server has said how many it allows.
        if locked.place() == Place::Taken || locked.limit() == UNSAID {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        assert_eq!(locked.place(), Place::Free);
        let (method, headers) = (request.method(), request.headers());
        let path = request.uri().path_and_query().unwrap().as_str();
        let ask = http2::Ask { method, authority: &Authority::from_static("one.shop"), path, headers };
        Poll::Ready(Call::begin(session, locked, &ask, ends))
    })
    .await;
    if ends { call } else { call.with(body) }
}

async fn ask(session: Shared, ask: Ask) -> Heard {
    let called = begin(&session, &request(&ask), body_of_request(&ask)).await;
    let (answer, upload) = match called.await {
        Ok(answered) => answered,
        Err(http2::Unanswered::Lost(Lost::Reset(reason))) => {
            return Heard { reset: Some(Reason::from(reason.0)), ..Heard::nothing() };
        }
        Err(other) => panic!("{other:?}"),
    };
    let uploading = upload.map(tokio::spawn);
    let (mut head, mut body) = answer.into_parts();
    head.headers.remove("date");
    head.headers.remove("content-length");
    let mut heard = Heard { status: Some(head.status), headers: head.headers, ..Heard::nothing() };
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => whole.extend_from_slice(&data),
            Ok(Err(frame)) => heard.trailers = frame.into_trailers().ok(),
            Err(Lost::Reset(reason)) => heard.reset = Some(Reason::from(reason.0)),
            Err(other) => panic!("{other:?}"),
        }
        if heard.reset.is_some() {
            break;
        }
    }
    heard.body = whole.freeze();
    if let Some(uploading) = uploading {
        // To its end, or until nobody wants it.
        uploading.await.unwrap();
    }
    heard
}

async fn run(program: &Program, near: DuplexStream, planted: Option<Planted>) -> Vec<Heard> {
    let connection = Outbound::new(near);
    let session = connection.session();
    lock(&session).planted = planted;
    let driving = tokio::spawn(connection);
    let asks = program.asks.iter().map(|one| ask(Shared::clone(&session), one.clone()));
    let heard = futures_util::future::join_all(asks).await;
    lock(&session).retire();
    driving.await.unwrap();
    heard
}

/// hyper's server, with windows and frames of the program's sizes.
async fn hypers(stream: DuplexStream, program: Program, most: u32) {
    let service = hyper::service::service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
    let _ = Builder::new(TokioExecutor::new())
        .initial_stream_window_size(program.window)
        .initial_connection_window_size(program.connection_window)
        .max_frame_size(program.frame)
        .max_concurrent_streams(most)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// What h2 hears of hyper's server, and what ours hears of it and of our own.
fn all(program: &Program, most: u32, planted: Option<Planted>) -> [Vec<Heard>; 3] {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (near, far) = duplex(1 << 16);
        // h2 asks before it has heard how many are allowed.
        let serving = tokio::spawn(hypers(far, program.clone(), 1000));
        let by_h2 = in_time("h2", super::run(program, near)).await;
        in_time("hyper's", serving).await.unwrap();

        let (near, far) = duplex(1 << 16);
        let serving = tokio::spawn(hypers(far, program.clone(), most));
        let by_ours = in_time("ours", run(program, near, planted)).await;
        in_time("hyper's", serving).await.unwrap();

        let (near, far) = duplex(program.pipe);
        let serving = tokio::spawn(ours(far, None));
        let of_ours = in_time("ours, of our own", run(program, near, planted)).await;
        in_time("our own", serving).await.unwrap();
        [by_h2, by_ours, of_ours]
    })
}

/// Says where they differ.
fn compare(program: &Program, most: u32, planted: Option<Planted>) -> Result<(), TestCaseError> {
    let [h2, ours, of_ours] = all(program, most, planted);
    for (n, ask) in program.asks.iter().enumerate() {
        let breaks = matches!(ask.manner, Manner::Breaks);
        for heard in [&ours[n], &of_ours[n]] {
            // What waits to be sent on a stream that is reset may be forgotten.
            let alike = *heard == h2[n] || breaks && heard.reset == h2[n].reset;
            prop_assert!(alike, "{heard:?} and {:?} of {ask:?}", h2[n]);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn ours_hears_what_h2_does(program in any_programs(), most in 1..30_u32) {
        compare(&program, most, None)?;
    }
}

#[test]
fn a_mistake_is_found() {
    for planted in [
        Planted::AnyStreamsBody,
        Planted::NoTrailers,
        Planted::NoWindow,
        Planted::NoEnd,
        Planted::OneFieldLess,
    ] {
        let mut dice = TestRunner::deterministic();
        let found = (0..64).any(|_| {
            let program = any_programs().new_tree(&mut dice).unwrap().current();
            let compared = panic::catch_unwind(|| compare(&program, 7, Some(planted)));
            !matches!(compared, Ok(Ok(()))) && compare(&program, 7, None).is_ok()
        });
        assert!(found, "{planted:?}");
    }
}
