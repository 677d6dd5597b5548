//! Answers as they are sent.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_answer_ends_with_its_last_piece() {
    let mut program = Program::new().await;
    program.asks(&get(1, "/")).await.answers(whole(200, "text"));
    program.hears([head(1, 200, &[("content-length", "4")], false), data(1, "text", true)]).await;
    let (pieces, answer) = streamed();
    program.asks(&get(3, "/")).await.answers(answer);
    program.hears([head(3, 200, &[], false)]).await;
    pieces.send(piece("one")).unwrap();
    program.hears([data(3, "one", false)]).await;
    pieces.send(piece("")).unwrap();
    program.hears_nothing().await;
    drop(pieces);
    program.hears([data(3, "", true)]).await;
    program.goes_on(5).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_body_ends_with_its_head() {
    let mut program = Program::new().await;
    for (stream, status, fields) in
        [(1, 204, &[][..]), (3, 200, &[("content-length", "1000")]), (5, 304, &[("etag", "x")])]
    {
        let mut answer = whole(status, "");
        *answer.headers_mut() = headers(fields);
        program.asks(&get(stream, "/")).await.answers(answer);
        program.hears([head(stream, status, fields, true)]).await;
    }
    program.goes_on(7).await;
}

#[tokio::test(start_paused = true)]
async fn a_length_that_is_told_stays_as_it_is() {
    let mut program = Program::new().await;
    let (pieces, mut answer) = streamed();
    *answer.headers_mut() = headers(&[("content-length", "3")]);
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(piece("tea")).unwrap();
    drop(pieces);
    program
        .hears([head(1, 200, &[("content-length", "3")], false), data(1, "tea", false), data(1, "", true)])
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_end_with_trailers() {
    let mut program = Program::new().await;
    let (pieces, answer) = streamed();
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(piece("text")).unwrap();
    let said = headers(&[("x-sum", "7"), ("connection", "close"), ("x-sum", "8")]);
    pieces.send(Ok(Frame::trailers(said))).unwrap();
    let headers = headers(&[("x-sum", "7"), ("x-sum", "8")]);
    let trailers = Heard::Head { stream: 1, status: None, headers, ends: true };
    program.hears([head(1, 200, &[], false), data(1, "text", false), trailers]).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn trailers_need_no_room() {
    let mut program = Program::with(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let (pieces, answer) = streamed();
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(Ok(Frame::trailers(headers(&[("x-sum", "7")])))).unwrap();
    let trailers = Heard::Head { stream: 1, status: None, headers: headers(&[("x-sum", "7")]), ends: true };
    program.hears([head(1, 200, &[], false), trailers]).await;
}

#[tokio::test(start_paused = true)]
async fn a_large_head_goes_into_several_frames() {
    let mut program = Program::new().await;
    let mut answer = whole(200, "");
    for n in 0..400 {
        let value = format!("{n}{}", "v".repeat(200)).parse().unwrap();
        answer.headers_mut().append(HeaderName::from_static("x-long"), value);
    }
    let expected = answer.headers().clone();
    program.asks(&get(1, "/")).await.answers(answer);

    let (mut kinds, mut block) = (Vec::new(), Vec::new());
    loop {
        let (head, payload) = program.wire.frame().await.unwrap();
        assert!(head.stream == 1 && head.length <= USUAL, "{head:?}");
        kinds.push((head.kind, head.flags));
        block.extend_from_slice(&payload);
        if head.has(END_HEADERS) {
            break;
        }
    }
    let (first, rest) = kinds.split_first().unwrap();
    assert_eq!(*first, (HEADERS, END_STREAM));
    let (last, between) = rest.split_last().unwrap();
    assert_eq!(*last, (CONTINUATION, END_HEADERS));
    assert!(!between.is_empty() && between.iter().all(|frame| *frame == (CONTINUATION, 0)), "{kinds:?}");
    let mut decoded = HeaderMap::new();
    let each = |field| {
        if let Field::Header(name, value) = field {
            decoded.append(name, value);
        }
    };
    program.wire.decoder.decode(&block, each).unwrap();
    assert_eq!(decoded, expected);
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_is_cut_into_frames_that_everybody_takes() {
    // The program would take longer ones.
    let mut program = Program::with(&[(5, 1 << 20), (INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    program.asks(&get(1, "/")).await.answers(whole(200, vec![b'x'; 2 * USUAL + 1]));
    let length = (2 * USUAL + 1).to_string().leak();
    program.hears([head(1, 200, &[("content-length", length)], false)]).await;
    let long = Bytes::from(vec![b'x'; USUAL]);
    program.hears([data(1, long.clone(), false), data(1, long, false), data(1, "x", true)]).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_is_reset() {
    let mut program = Program::new().await;
    let (pieces, answer) = streamed();
    program.asks(&get(1, "/")).await.answers(answer);
    pieces.send(piece("so far")).unwrap();
    pieces.send(Err("broken".into())).unwrap();
    program.hears([head(1, 200, &[], false), data(1, "so far", false)]).await;
    program.hears([Heard::Reset(1, Reason::INTERNAL_ERROR)]).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn fields_about_a_connection_of_http1_are_left_out() {
    let mut program = Program::new().await;
    let mut answer = whole(200, "");
    *answer.headers_mut() = headers(&[
        ("connection", "close, x"),
        ("x-kept", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("connection", "again"),
    ]);
    program.asks(&get(1, "/")).await.answers(answer);
    program.hears([head(1, 200, &[("x-kept", "1")], true)]).await;
}

#[tokio::test(start_paused = true)]
async fn answers_come_as_they_are_ready() {
    let mut program = Program::new().await;
    let first = program.asks(&get(1, "/")).await;
    let second = program.asks(&get(3, "/")).await;
    second.answers(whole(200, ""));
    program.hears([head(3, 200, &[], true)]).await;
    first.answers(whole(404, ""));
    program.hears([head(1, 404, &[], true)]).await;
}
