//! What packing must keep, whatever the documents.

use std::collections::BTreeMap;
use std::path::Path;

use llm::interface;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use rigel_train::data::{Dataset, Loader, Packing, Position, TokenFile, TokenWriter};
use rigel_train::{Batch, BatchSource};

use crate::common::names;

/// Documents as ids and flags, the first of which never counts.
type Documents = Vec<Vec<(u32, bool)>>;

/// Ids that are all different, so that a pair of neighbours tells where it is.
fn documents(mask: bool) -> impl Strategy<Value = Documents> {
    let flag = if mask { any::<bool>().boxed() } else { Just(true).boxed() };
    let lengths = prop::collection::vec(prop::collection::vec(flag, 1..40), 1..30);
    lengths.prop_map(|documents| {
        let mut next = 0;
        let mut id = || {
            next += 1;
            70_000 + next
        };
        documents.into_iter().map(|d| d.into_iter().map(|f| (id(), f)).collect()).collect()
    })
}

const VOCAB: usize = 151_936;

/// Writes the documents to files of a few tokens each.
fn write(dir: &Path, documents: &Documents) -> Dataset {
    let mut writer = TokenWriter::new(&dir.join("part.bin"), VOCAB, Some(50)).unwrap();
    for document in documents {
        let (ids, counts): (Vec<u32>, Vec<bool>) = document.iter().copied().unzip();
        writer.document(&ids, Some(&counts)).unwrap();
    }
    writer.finish().unwrap();
    Dataset::open(&[dir.to_owned()], VOCAB).unwrap()
}

fn packing(tokens: usize, seed: Option<u64>) -> Packing {
    Packing { sequences: 3, tokens, seed, rank: (0, 1), names: names(true) }
}

fn rows(batch: &Batch, name: &str) -> Vec<i32> {
    batch.inputs[name].as_slice::<i32>().unwrap().to_vec()
}

/// Input and target of each row that counts, with how many ids before it in its document it sees.
fn seen(batch: &Batch, tokens: usize) -> Vec<(i32, i32, usize)> {
    let [ids, targets, segments] =
        [interface::IDS, interface::TARGETS, interface::SEGMENTS].map(|name| rows(batch, name));
    let mut found = Vec::new();
    // Padding is 0, which is no id of the documents.
    for (i, (&id, &target)) in ids.iter().zip(&targets).enumerate().filter(|(_, (id, _))| **id > 0)
    {
        let start = i - i % tokens;
        let before = (start..i).filter(|&j| segments[j] == segments[i]);
        let context = before.clone().count();
        // What a row sees are the ids right before it in the document.
        for (back, j) in before.rev().enumerate() {
            assert_eq!(ids[j], id - back as i32 - 1, "another document is seen");
        }
        if target >= 0 {
            found.push((id, target, context));
        }
    }
    found
}

/// All pairs of one epoch that must be predicted.
fn pairs(documents: &Documents) -> Vec<(i32, i32)> {
    let windows = documents.iter().flat_map(|d| d.windows(2));
    let counted = windows.filter(|w| w[1].1);
    counted.map(|w| (w[0].0 as i32, w[1].0 as i32)).collect()
}

fn check(documents: &Documents, tokens: usize, seed: Option<u64>) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let data = write(dir.path(), documents);
    let expected = pairs(documents);
    let loader = Loader::held_out(data.clone(), packing(tokens, seed));
    let Ok(mut loader) = loader else {
        prop_assert!(expected.is_empty(), "refused");
        return Ok(());
    };
    let mut found = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        let seen = seen(&batch, tokens);
        prop_assert!(seen.len() == batch.targets && batch.targets > 0);
        found.extend(seen);
    }
    let mut once: Vec<(i32, i32)> = found.iter().map(|f| (f.0, f.1)).collect();
    once.sort_unstable();
    prop_assert_eq!(&once, &expected, "every target once");
    // A document that fits is never cut: each row sees all before it.
    let mut at = BTreeMap::new();
    for document in documents.iter().filter(|d| d.len() <= tokens + 1) {
        at.extend(document.iter().enumerate().map(|(i, (id, _))| (*id as i32, i)));
    }
    for (id, _, context) in &found {
        prop_assert!(at.get(id).is_none_or(|i| i == context), "cut");
    }
    prop_assert!(loader.next_batch().unwrap().is_some(), "another pass");
    resumes(&data, tokens, seed)
}

/// From any position, the batches are those that came after it.
fn resumes(data: &Dataset, tokens: usize, seed: Option<u64>) -> Result<(), TestCaseError> {
    let new = |seed| Loader::new(data.clone(), packing(tokens, seed)).unwrap();
    let mut loader = new(seed);
    let mut history: Vec<(Position, Batch)> = Vec::new();
    for _ in 0..12 {
        let position = loader.position();
        history.push((position, loader.next_batch().unwrap().unwrap()));
    }
    for (i, (position, _)) in history.iter().enumerate() {
        let text = serde_json::to_string(position).unwrap();
        let mut resumed = new(seed);
        resumed.seek(&serde_json::from_str(&text).unwrap()).unwrap();
        for (_, batch) in history[i..].iter().take(3) {
            let found = resumed.next_batch().unwrap().unwrap();
            for name in [interface::IDS, interface::TARGETS, interface::SEGMENTS] {
                prop_assert_eq!(rows(&found, name), rows(batch, name));
            }
        }
    }
    let error = new(Some(99)).seek(&history[0].0).unwrap_err().to_string();
    prop_assert!(error.contains("another seed") && error.contains("99"), "{}", error);
    let mut longer = Loader::new(data.clone(), packing(tokens + 1, seed)).unwrap();
    let error = longer.seek(&history[0].0).unwrap_err().to_string();
    prop_assert!(error.contains(&format!("3 sequences of {} tokens", tokens + 1)), "{}", error);
    // The shares of two processes are one's batch.
    let half = |rank| Packing { sequences: 3, rank: (rank, 2), ..packing(tokens, seed) };
    let mut halves = [0, 1].map(|rank| Loader::new(data.clone(), half(rank)).unwrap());
    let whole = Packing { sequences: 6, ..packing(tokens, seed) };
    let mut whole = Loader::new(data.clone(), whole).unwrap();
    for _ in 0..3 {
        let [a, b] = halves.each_mut().map(|l| l.next_batch().unwrap().unwrap());
        let whole = whole.next_batch().unwrap().unwrap();
        let joined = [rows(&a, interface::IDS), rows(&b, interface::IDS)].concat();
        prop_assert_eq!(joined, rows(&whole, interface::IDS));
    }
    prop_assert_eq!(halves[0].position(), halves[1].position());
    prop_assert_eq!(halves[0].position(), whole.position());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn shuffled(documents in documents(false), tokens in 1usize..24, seed: u64) {
        check(&documents, tokens, Some(seed))?;
    }

    #[test]
    fn in_order_and_masked(documents in documents(true), tokens in 1usize..24) {
        check(&documents, tokens, None)?;
    }

    /// Of long answers and prompts, each target is predicted once and sees half a sequence before it, or as much as
    /// there is; only an answer of nearly a whole sequence, which is not cut, leaves less.
    #[test]
    fn answers(
        turns in prop::collection::vec((2usize..30, 1usize..30), 1..20), tokens in 1usize..24, shuffled: bool,
    ) {
        let flags = |&(asked, answered): &(usize, usize)| {
            [vec![false; asked], vec![true; answered]].concat()
        };
        let flags: Vec<bool> = turns.iter().flat_map(flags).collect();
        let document: Vec<(u32, bool)> = (1..).zip(flags).collect();
        check(&vec![document.clone()], tokens, shuffled.then_some(1))?;
        let mut expected = Vec::new();
        for &(asked, answered) in &turns {
            // The input of the first target is the last that was asked.
            let first = expected.len() + asked - 1;
            let room = if answered <= tokens { tokens - answered } else { tokens };
            let least = |row: usize| row.min((tokens / 2).min(room + row.saturating_sub(first)));
            expected.extend((expected.len()..first + 1 + answered).map(least));
        }
        for (id, _, context) in pass(&document, tokens).0 {
            let least = expected[id as usize - 1];
            prop_assert!(context >= least, "id {id} sees {context}, not {least}");
        }
    }

    #[test]
    fn files_hold_what_was_written(documents in documents(true)) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &documents);
        let mut paths: Vec<_> = dir.path().read_dir().unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        let mut found = Documents::new();
        for path in paths {
            let file = TokenFile::open(&path).unwrap();
            let document = |i| file.document(i).map(|t| (file.id(t).unwrap(), file.counts(t)));
            found.extend((0..file.documents()).map(|i| document(i).collect::<Vec<_>>()));
        }
        prop_assert_eq!(found, documents);
    }

    #[test]
    fn split_parts_are_all(documents in documents(false), part in 0.05f64..0.95) {
        let dir = tempfile::tempdir().unwrap();
        let data = write(dir.path(), &documents);
        let total = data.tokens();
        match data.split(part) {
            Ok((first, last)) => {
                prop_assert_eq!(first.tokens() + last.tokens(), total);
                prop_assert!((last.tokens() as f64 - part * total as f64).abs() <= 0.5 + 1e-6);
            }
            Err(e) => prop_assert!(e.to_string().contains("one side empty")),
        }
    }
}

/// Without a segments input, a sequence holds one document.
#[test]
fn one_document_a_sequence() {
    let dir = tempfile::tempdir().unwrap();
    let documents: Documents = vec![vec![(1, true); 5]; 4];
    let data = write(dir.path(), &documents);
    let names = names(false);
    let packing = Packing { names, ..packing(10, Some(1)) };
    let mut loader = Loader::new(data, packing).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    assert!(!batch.inputs.contains_key(interface::SEGMENTS));
    let expected = [[1, 1, 1, 1, -1, -1, -1, -1, -1, -1]; 3].concat();
    assert_eq!(rows(&batch, interface::TARGETS), expected);
    assert_eq!((batch.tokens, batch.targets), (12, 12));
}

#[test]
fn wrong_files_and_ids() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.bin");
    let mut writer = TokenWriter::new(&path, 300, None).unwrap();
    let error = writer.document(&[1, 300], None).unwrap_err().to_string();
    assert!(error.contains("document 0: id 300, the vocabulary has 300 ids"), "{error}");
    writer.document(&[1, 299, 7], None).unwrap();
    assert_eq!(writer.finish().unwrap(), std::slice::from_ref(&path));
    let error = Dataset::open(std::slice::from_ref(&path), 299).unwrap_err().to_string();
    assert!(error.ends_with("is of a vocabulary of 300 ids, the model's has 299"), "{error}");

    let good = std::fs::read(&path).unwrap();
    let (mut accepted, copy) = (0, dir.path().join("copy.bin"));
    for i in 0..good.len() {
        let mut bad = good.clone();
        bad[i] ^= 0xff;
        std::fs::write(&copy, &bad).unwrap();
        match TokenFile::open(&copy) {
            // Only unused bytes can change unnoticed.
            Ok(_) => {
                accepted += 1;
                assert!((56..64).contains(&i), "byte {i}");
            }
            Err(e) => assert!(e.to_string().contains("copy.bin"), "{e}"),
        }
        std::fs::write(&copy, &good[..i]).unwrap();
        assert!(TokenFile::open(&copy).is_err(), "cut at {i}");
    }
    assert_eq!(accepted, 8);

    // Files of before have no checksum, and their ids are read before a run begins.
    let mut old = good;
    old[48..56].fill(0);
    std::fs::write(&copy, &old).unwrap();
    assert_eq!(Dataset::open(std::slice::from_ref(&copy), 300).unwrap().tokens(), 3);
    old[66..68].copy_from_slice(&300u16.to_le_bytes());
    std::fs::write(&copy, &old).unwrap();
    let error = Dataset::open(std::slice::from_ref(&copy), 300).unwrap_err().to_string();
    assert!(error.ends_with("copy.bin: token 1 is 300, the vocabulary has 300 ids"), "{error}");
}

/// A change in the middle of a large file is one of the data.
#[test]
fn changed_data_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.bin");
    let open = |middle: u32| {
        let mut ids = vec![7; 20_000];
        ids[10_000] = middle;
        let mut writer = TokenWriter::new(&path, 300, None).unwrap();
        writer.document(&ids, None).unwrap();
        writer.finish().unwrap();
        let data = Dataset::open(std::slice::from_ref(&path), 300).unwrap();
        Loader::new(data, packing(16, Some(1))).unwrap()
    };
    let position = open(8).position();
    open(8).seek(&position).unwrap();
    let error = open(9).seek(&position).unwrap_err().to_string();
    assert!(error.contains("data.bin: has changed since the checkpoint"), "{error}");
}

/// What is seen in one pass over a document, and how many rows that takes.
fn pass(document: &[(u32, bool)], tokens: usize) -> (Vec<(i32, i32, usize)>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let data = write(dir.path(), &vec![document.to_vec()]);
    let mut loader = Loader::held_out(data, packing(tokens, None)).unwrap();
    let (least, mut batches) = (loader.batches(), 0);
    let (mut found, mut rows) = (Vec::new(), 0);
    while let Some(batch) = loader.next_batch().unwrap() {
        found.extend(seen(&batch, tokens));
        rows += batch.tokens;
        batches += 1;
    }
    assert!(least <= batches && rows.div_ceil(3 * tokens) == least, "{least} of {batches}");
    (found, rows)
}

/// Short answers share a piece, which is no more than half what was before.
#[test]
fn many_short_answers_take_few_pieces() {
    // 100 turns of 20 ids asked and 20 answered: six answers at the beginning, then three a piece.
    let document: Vec<(u32, bool)> = (1..=4000).map(|id| (id, (id - 1) / 20 % 2 == 1)).collect();
    let (found, rows) = pass(&document, 256);
    assert_eq!(found.len(), 2000);
    // The first ends with the sixth answer, after 239 rows; 31 have three each; and the last has one.
    assert_eq!(rows, 239 + 32 * 256);
    // One long answer is cut into halves of a sequence, each with the other half before it.
    let document: Vec<(u32, bool)> = (1..=4000).map(|id| (id, id > 100)).collect();
    let (found, rows) = pass(&document, 256);
    assert_eq!(found.len(), 3900);
    // All rows up to 256; 29 halves; and what is left, with all that there is room for.
    assert_eq!(rows, 256 + 30 * 256);
}

/// An answer is trained on with what is right before it, however long that is.
#[test]
fn answers_keep_the_end_of_their_prompts() {
    let dir = tempfile::tempdir().unwrap();
    // Prompts of 20, 4 and 30 ids with answers of 3, 2 and 12, in one document.
    let parts = [(20, false), (3, true), (4, false), (2, true), (30, false), (12, true)];
    let flags = parts.iter().flat_map(|&(n, counts)| std::iter::repeat_n(counts, n));
    let document: Vec<(u32, bool)> = flags.zip(100..).map(|(counts, id)| (id, counts)).collect();
    let data = write(dir.path(), &vec![document.clone(), vec![(1, true), (2, true)]]);
    assert_eq!((data.longer_than(70), data.longer_than(69), data.longer_than(1)), (0, 1, 1));
    let mut loader = Loader::held_out(data, packing(8, Some(1))).unwrap();
    let mut found = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        found.extend(seen(&batch, 8).into_iter().filter(|f| f.0 >= 100));
    }
    found.sort_unstable();
    let targets: Vec<(i32, usize)> = found.iter().map(|f| (f.1, f.2)).collect();
    let expected = [
        // Five ids of the prompt, and the last that is the input of the first row.
        (120, 5),
        (121, 6),
        (122, 7),
        // The answer before and its prompt are seen too.
        (127, 6),
        (128, 7),
        // Longer than a sequence: half of it prompt, then half of it what came before.
        (159, 4),
        (160, 5),
        (161, 6),
        (162, 7),
        (163, 4),
        (164, 5),
        (165, 6),
        (166, 7),
        (167, 4),
        (168, 5),
        (169, 6),
        (170, 7),
    ];
    assert_eq!(targets, expected);
}
