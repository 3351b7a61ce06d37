//! What runs leave for people: JSON lines, TensorBoard events, curves.

use std::fs;

use rigel_train::metrics::tensorboard::{self, EventFile};
use rigel_train::metrics::{JsonLines, Record, read};
use rigel_train::{Evaluation, Observer, Step, plot};

fn step(step: u64) -> Step {
    Step {
        step,
        loss: 4.0 / step as f64,
        gradient_norm: 1.0 / 3.0,
        learning_rate: 1e-3,
        loss_scale: (step == 2).then_some(1024.0),
        tokens: 24,
        total_tokens: 24 * step,
        seconds: 0.5,
        update_seconds: 0.1,
        peak_bytes: Some(1 << 30),
    }
}

fn evaluation(step: u64) -> Evaluation {
    Evaluation { step, loss: 1.5, targets: 100, seconds: 2.0 }
}

/// TensorBoard's own writer made the file (`tests/golden/tensorboard_events.py`); ours makes the same bytes.
#[test]
fn events_are_tensorboards() {
    let path = testkit::workspace_dir().join("tests/golden/train/events.out.tfevents");
    let events = tensorboard::read(&path).unwrap();
    let version = events[0].file_version.as_deref();
    assert_eq!((events.len(), version, events[1].step), (6, Some("brain.Event:2"), 7));
    let scalars = &events[3].summary.as_ref().unwrap().value;
    let found: Vec<_> = scalars.iter().map(|s| (s.tag.as_str(), s.simple_value.unwrap())).collect();
    assert_eq!(found, [("loss/train", -0.25), ("Lernrate η", 3e-4)]);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(events.iter().flat_map(tensorboard::frame).collect::<Vec<_>>(), bytes);

    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("events");
    for i in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[i] ^= 0x10;
        fs::write(&copy, &bad).unwrap();
        // A length that points past the end would be taken for a file that is cut off, but has its own CRC.
        let error = tensorboard::read(&copy).unwrap_err().to_string();
        assert!(error.contains("is damaged"), "{error}");
        fs::write(&copy, &bytes[..i]).unwrap();
        assert!(tensorboard::read(&copy).unwrap().len() < 6, "cut at {i}");
    }
}

#[test]
fn event_files_of_a_run_that_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = EventFile::create(dir.path(), 0).unwrap();
    assert!(first.step(&step(1)).unwrap().is_continue());
    assert!(first.step(&step(2)).unwrap().is_continue());
    let mut second = EventFile::create(dir.path(), 1).unwrap();
    second.evaluated(&evaluation(2)).unwrap();
    assert_ne!(first.path(), second.path());
    let events = tensorboard::read(first.path()).unwrap();
    let tags = |i: usize| {
        let values = &events[i].summary.as_ref().unwrap().value;
        values.iter().map(|v| v.tag.clone()).collect::<Vec<_>>()
    };
    // After the version, the beginning of a session.
    assert_eq!(tags(2), ["loss/train", "gradient_norm", "learning_rate", "tokens_per_second"]);
    assert_eq!(tags(3)[4], "loss_scale");
    let events = tensorboard::read(second.path()).unwrap();
    let start = (events[1].step, events[1].session_log.as_ref().unwrap().status);
    assert_eq!(start, (2, 1), "drops what the broken run wrote of step 2");
    assert_eq!(events[2].summary.as_ref().unwrap().value[0].tag, "loss/held_out");
}

#[test]
fn json_lines_go_on_behind_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let mut lines = <JsonLines>::open(&path, 0).unwrap();
    for i in 1..=4 {
        assert!(lines.step(&step(i)).unwrap().is_continue());
    }
    lines.evaluated(&evaluation(4)).unwrap();
    let all = read::<Record>(&path).unwrap();
    assert_eq!(all[1], Record::Step(step(2)));
    assert_eq!(all[4], Record::Evaluation(evaluation(4)));
    // A process that was killed in the middle of a line.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 9]).unwrap();
    assert_eq!(read::<Record>(&path).unwrap(), all[..4]);
    let mut lines = <JsonLines>::open(&path, 2).unwrap();
    assert!(lines.step(&step(3)).unwrap().is_continue());
    assert_eq!(read::<Record>(&path).unwrap(), all[..3]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain), "others can read it as any file");
    }
    // What a line of is damaged stays beside what can be read of it.
    assert_eq!(lines.set_aside(), None);
    let text = fs::read_to_string(&path).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let damaged = format!("{first}\n{{\"step\": \n{rest}");
    fs::write(&path, &damaged).unwrap();
    let lines = <JsonLines>::open(&path, 3).unwrap();
    assert_eq!(read::<Record>(&path).unwrap(), all[..3]);
    let aside = dir.path().join("metrics.jsonl.1");
    assert_eq!(lines.set_aside(), Some(aside.as_path()));
    assert_eq!(fs::read_to_string(&aside).unwrap(), damaged);
    // And so do steps where none are done.
    let lines = <JsonLines>::open(&path, 0).unwrap();
    let aside = dir.path().join("metrics.jsonl.2");
    assert_eq!(lines.set_aside(), Some(aside.as_path()));
    assert_eq!(read::<Record>(&aside).unwrap(), all[..3]);
    assert_eq!(read::<Record>(&path).unwrap(), []);
    fs::write(&path, "{}\n").unwrap();
    assert!(read::<Record>(&path).unwrap_err().to_string().contains("line 1"));
    <JsonLines>::open(&path, 0).unwrap();
    assert_eq!(read::<Record>(&path).unwrap(), []);
}

#[test]
fn curves() {
    let dir = tempfile::tempdir().unwrap();
    let mut records: Vec<Record> = (1..50).map(|i| Record::Step(step(i))).collect();
    records.push(Record::Step(Step { loss: f64::NAN, ..step(50) }));
    // Ranges of such would overflow.
    records.push(Record::Step(Step { gradient_norm: 1.7e308, ..step(51) }));
    records.push(Record::Step(Step { loss: -1e308, ..step(52) }));
    records.push(Record::Step(Step { loss: 1e308, ..step(53) }));
    records.extend([10, 20, 49].map(|i| Record::Evaluation(evaluation(i))));
    let run = |name: &str| plot::Run { name: name.to_owned(), records: records.clone() };
    let svg = dir.path().join("curves.svg");
    plot::draw(&svg, &[run("first"), run("second <&>")]).unwrap();
    let text = fs::read_to_string(&svg).unwrap();
    for part in ["loss (nats a token)", "learning rate", "gradient norm", "second &lt;&amp;&gt;"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("NaN"));
    // A new drawing takes the place of the old one, and is not drawn over it.
    let old = dir.path().join("old.svg");
    fs::hard_link(&svg, &old).unwrap();
    plot::draw(&svg, &[run("third")]).unwrap();
    assert_eq!(fs::read_to_string(&old).unwrap(), text);
    assert_ne!(fs::read_to_string(&svg).unwrap(), text);
    let png = dir.path().join("curves.png");
    plot::draw(&png, &[run("only")]).unwrap();
    let bytes = fs::read(&png).unwrap();
    assert!(
        bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes[16..24] == [0, 0, 3, 232, 0, 0, 4, 76]
    );
    let error = plot::draw(&dir.path().join("curves.gif"), &[run("only")]).unwrap_err();
    assert!(error.to_string().ends_with("is neither .svg nor .png"));
    let empty = plot::Run { name: "empty".to_owned(), records: Vec::new() };
    let error = plot::draw(&svg, &[empty]).unwrap_err().to_string();
    assert!(error.starts_with("empty: no step was measured"), "{error}");
    let large = [(1, 1e30), (2, -1e30), (3, 0.0)];
    let large = large.map(|(i, loss)| Record::Step(Step { loss, ..step(i) })).to_vec();
    plot::draw(&svg, &[plot::Run { name: "large".to_owned(), records: large }]).unwrap();
}
