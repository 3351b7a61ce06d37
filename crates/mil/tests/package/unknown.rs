//! Fields that are not modelled: one is put into every message of real models, and survives reading
//! and writing.

use std::collections::BTreeMap;
use std::fs;

use mil::package::Package;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use crate::common::weights_of;

/// A field that no message has.
const UNKNOWN: u32 = 500_001;

/// What a length-delimited field holds.
#[derive(Clone, Copy)]
enum Inner {
    /// A message.
    Message(&'static str),
    /// An entry of a map from strings to messages, which has no other fields.
    Entry(&'static str),
}
use Inner::{Entry, Message};

/// The messages inside of each message, by field: the public schema. What is not listed holds none.
#[rustfmt::skip]
const SCHEMA: &[(&str, &[(u32, Inner)])] = &[
    ("Model", &[(2, Message("ModelDescription")), (502, Message("Program"))]),
    ("ModelDescription", &[
        (1, Message("FeatureDescription")), (10, Message("FeatureDescription")),
        (13, Message("FeatureDescription")), (20, Message("FunctionDescription")),
        (100, Message("Metadata")),
    ]),
    ("FunctionDescription", &[
        (2, Message("FeatureDescription")), (3, Message("FeatureDescription")),
        (6, Message("FeatureDescription")),
    ]),
    ("FeatureDescription", &[(3, Message("FeatureType"))]),
    ("FeatureType", &[
        (1, Message("Empty")), (2, Message("Empty")), (3, Message("Empty")),
        (4, Message("ImageFeatureType")), (5, Message("ArrayFeatureType")),
        (6, Message("DictionaryFeatureType")), (8, Message("StateFeatureType")),
    ]),
    ("ImageFeatureType", &[]),
    ("ArrayFeatureType", &[(21, Message("EnumeratedShapes")), (31, Message("ShapeRange"))]),
    ("DictionaryFeatureType", &[(1, Message("Empty")), (2, Message("Empty"))]),
    ("StateFeatureType", &[(1, Message("ArrayFeatureType"))]),
    ("EnumeratedShapes", &[(1, Message("Shape"))]),
    ("ShapeRange", &[(1, Message("SizeRange"))]),
    ("Program", &[(2, Entry("Function")), (4, Entry("Value"))]),
    ("Function", &[(1, Message("NamedValueType")), (3, Entry("Block")), (4, Entry("Value"))]),
    ("Block", &[(1, Message("NamedValueType")), (3, Message("Operation"))]),
    ("Operation", &[
        (2, Entry("Argument")), (3, Message("NamedValueType")), (4, Message("Block")),
        (5, Entry("Value")),
    ]),
    ("Argument", &[(1, Message("Binding"))]),
    ("Binding", &[(2, Message("Value"))]),
    ("NamedValueType", &[(2, Message("ValueType"))]),
    ("ValueType", &[
        (1, Message("TensorType")), (2, Message("ListType")), (3, Message("TupleType")),
        (4, Message("DictionaryType")), (5, Message("StateType")),
    ]),
    ("TensorType", &[(3, Message("Dimension"))]),
    ("ListType", &[(1, Message("ValueType")), (2, Message("Dimension"))]),
    ("TupleType", &[(1, Message("ValueType"))]),
    ("DictionaryType", &[(1, Message("ValueType")), (2, Message("ValueType"))]),
    ("StateType", &[(1, Message("ValueType"))]),
    ("Dimension", &[(1, Message("ConstantDimension")), (2, Message("UnknownDimension"))]),
    ("Value", &[(2, Message("ValueType")), (3, Message("ImmediateValue")), (5, Message("BlobFileValue"))]),
    ("ImmediateValue", &[
        (1, Message("TensorValue")), (2, Message("ListValue")), (3, Message("ListValue")),
        (4, Message("DictionaryValue")),
    ]),
    ("TensorValue", &[
        (1, Message("Repeated")), (2, Message("Repeated")), (3, Message("Repeated")),
        (4, Message("Repeated")), (5, Message("Repeated")), (6, Message("Repeated")),
        (7, Message("Repeated")),
    ]),
    ("ListValue", &[(1, Message("Value"))]),
    ("DictionaryValue", &[(1, Message("KeyValuePair"))]),
    ("KeyValuePair", &[(1, Message("Value")), (2, Message("Value"))]),
];

fn inner(message: &str, tag: u32) -> Option<Inner> {
    let fields = SCHEMA.iter().find(|(name, _)| *name == message)?.1;
    fields.iter().find(|(field, _)| *field == tag).map(|&(_, inner)| inner)
}

/// The fields of a message: number, and the wire form of its value (of a length-delimited one without
/// the length).
fn fields(mut bytes: &[u8]) -> Vec<(u32, WireType, Vec<u8>)> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let (tag, wire) = decode_key(&mut bytes).unwrap();
        let len = match wire {
            WireType::Varint => bytes.iter().position(|b| b & 0x80 == 0).unwrap() + 1,
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            WireType::LengthDelimited => decode_varint(&mut bytes).unwrap() as usize,
            other => panic!("{other:?}"),
        };
        out.push((tag, wire, bytes[..len].to_vec()));
        bytes = &bytes[len..];
    }
    out
}

fn put(tag: u32, wire: WireType, value: &[u8], out: &mut Vec<u8>) {
    encode_key(tag, wire, out);
    if wire == WireType::LengthDelimited {
        encode_varint(value.len() as u64, out);
    }
    out.extend_from_slice(value);
}

/// The message with a numbered unknown field in it and in every message inside; each in turn of
/// another wire type.
fn injected(message: &'static str, bytes: &[u8], next: &mut u64) -> Vec<u8> {
    let mut out = Vec::new();
    for (tag, wire, value) in fields(bytes) {
        let value = match inner(message, tag) {
            Some(Message(inner)) => injected(inner, &value, next),
            Some(Entry(inner)) => {
                let mut entry = Vec::new();
                for (tag, wire, value) in fields(&value) {
                    let value = if tag == 2 { injected(inner, &value, next) } else { value };
                    put(tag, wire, &value, &mut entry);
                }
                entry
            }
            None => value,
        };
        put(tag, wire, &value, &mut out);
    }
    *next += 1;
    match *next % 4 {
        0 => {
            encode_key(UNKNOWN, WireType::Varint, &mut out);
            encode_varint(*next, &mut out);
        }
        1 => put(UNKNOWN, WireType::SixtyFourBit, &next.to_le_bytes(), &mut out),
        2 => put(UNKNOWN, WireType::ThirtyTwoBit, &(*next as u32).to_le_bytes(), &mut out),
        _ => put(UNKNOWN, WireType::LengthDelimited, next.to_string().as_bytes(), &mut out),
    }
    out
}

/// All unknown fields with the messages they are in.
fn found(message: &'static str, bytes: &[u8], out: &mut BTreeMap<Vec<u8>, &'static str>) {
    for (tag, _, value) in fields(bytes) {
        match inner(message, tag) {
            Some(Message(inner)) => found(inner, &value, out),
            Some(Entry(inner)) => {
                let of_value = fields(&value).into_iter().filter(|(tag, ..)| *tag == 2);
                of_value.for_each(|(_, _, value)| found(inner, &value, out));
            }
            None if tag == UNKNOWN => assert_eq!(out.insert(value, message), None),
            None => {}
        }
    }
}

#[test]
fn unknown_fields_of_every_message_survive() {
    let mut met = std::collections::BTreeSet::new();
    for name in [
        "gpt2_stateful",
        "llama_multifunction",
        "mlp_range",
        "convnet_image_classifier",
        "int4_block32",
        "sparse50_ios16",
        "zoo/while_loop.fp32",
    ] {
        let path = testkit::shared_dir().join("coreml").join(format!("{name}.mlpackage"));
        let model = fs::read(path.join("Data/com.apple.CoreML/model.mlmodel")).unwrap();
        let model = injected("Model", &model, &mut 0);
        let weights = weights_of(&path.with_extension("mil"));
        let package = Package::from_model(&model, &weights).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("x.mlpackage");
        package.save(&copy).unwrap();
        let written = fs::read(copy.join("Data/com.apple.CoreML/model.mlmodel")).unwrap();
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        found("Model", &model, &mut before);
        found("Model", &written, &mut after);
        assert!(before.len() > 100);
        let lost: Vec<_> = before.iter().filter(|&(k, _)| !after.contains_key(k)).collect();
        assert!(lost.is_empty(), "{name}: {} of {} lost: {lost:?}", lost.len(), before.len());
        assert_eq!(before, after, "{name}");
        met.extend(before.into_values());
        // And again, from the file.
        let again = folder.path().join("y.mlpackage");
        Package::open(&copy).unwrap().save(&again).unwrap();
        assert_eq!(
            fs::read(again.join("Data/com.apple.CoreML/model.mlmodel")).unwrap(),
            written,
            "{name}"
        );
    }
    let all: std::collections::BTreeSet<_> = SCHEMA.iter().map(|&(name, _)| name).collect();
    let missed: Vec<_> = all.difference(&met).collect();
    // No artefact has these.
    assert_eq!(missed, [&"EnumeratedShapes", &"TupleType"]);
}

#[test]
fn what_changed_or_went_takes_its_fields_with_it() {
    let path = testkit::shared_dir().join("coreml/mlp_ios18.mlpackage");
    let model = fs::read(path.join("Data/com.apple.CoreML/model.mlmodel")).unwrap();
    let mut count = 0;
    let model = injected("Model", &model, &mut count);
    let mut package =
        Package::from_model(&model, &weights_of(&path.with_extension("mil"))).unwrap();
    let main = package.program.functions.get_mut("main").unwrap();
    let gelu = main.ops.iter().find(|(_, op)| op.kind == mil::OpKind::Gelu).unwrap().0;
    main.ops[gelu].kind = mil::OpKind::Relu;
    main.ops[gelu].args.truncate(1);
    main.ops[gelu].attributes.remove("name");
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("x.mlpackage");
    package.save(&copy).unwrap();
    let written = fs::read(copy.join("Data/com.apple.CoreML/model.mlmodel")).unwrap();
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    found("Model", &model, &mut before);
    found("Model", &written, &mut after);
    let lost: Vec<_> = before.iter().filter(|&(k, _)| !after.contains_key(k)).collect();
    assert_eq!(lost.iter().filter(|(_, m)| **m == "Operation").count(), 1);
    assert!(lost.len() < 40 && after.len() < before.len(), "{lost:?}");
    mil::verify(&Package::open(&copy).unwrap().program).unwrap();
}

#[test]
fn groups_are_refused() {
    let mut model = Vec::new();
    encode_key(UNKNOWN, WireType::StartGroup, &mut model);
    encode_key(UNKNOWN, WireType::EndGroup, &mut model);
    let weights = mil::text::NoBlobs;
    let error = Package::from_model(&model, &weights).unwrap_err().to_string();
    assert!(error.starts_with("not a Core ML model: "), "{error}");
}
