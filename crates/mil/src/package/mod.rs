//! Files that programs are kept in: Core ML packages (`.mlpackage`), compiled models (`.mlmodelc`),
//! single specifications (`.mlmodel`) and MIL text, each with its weight files.
//!
//! What a package says besides the program is in its description; a compiled model or a text has
//! none of its own, and its functions' signatures imply it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use prost::Message;

mod agreement;
pub mod blob;
mod compiled;
mod decode;
mod description;
mod encode;
mod files;
mod flexible;
mod manifest;
mod pipeline;
pub mod proto;
mod save;
mod types;
pub(crate) mod weights;

use crate::text::{self, BlobSource, Dialect};
use crate::{Error, ErrorKind, OpError, Program, Result};
use files::WeightFiles;
use proto::{Kept, ModelDescription, Residue};

pub use description::{Feature, Image, Interface, Kind, Shapes};
pub use proto::Metadata;

/// A program as files hold it.
#[derive(Clone, Debug)]
pub struct Package {
    /// Version of Core ML's specification: 6 for iOS 15 up to 10 for iOS 26.
    pub spec_version: i32,
    /// The interface in the file's words; `None` where functions' signatures say all.
    pub description: Option<Kept<ModelDescription>>,
    /// The program. Its functions have the attribute `FlexibleShapeInformation` where the
    /// description lets an input have several shapes. Weights are windows of mapped files, which must
    /// not be changed meanwhile.
    pub program: Program,
    /// The program's comment.
    pub comment: String,
    /// Fields of the model that Rigel does not know, to be written again.
    unknown: Vec<u8>,
    /// What the program was read from, if that has parts which the program does not hold.
    residue: Option<Arc<Kept<proto::Program>>>,
}

impl Package {
    /// A package of `program` alone, for the oldest system that has its operation sets.
    pub fn from_program(program: Program) -> Self {
        let opsets = program.functions.values().map(|f| types::version_of_opset(f.opset));
        let oldest = types::version_of_opset(crate::Opset::Ios15);
        Package {
            spec_version: opsets.max().unwrap_or(oldest),
            description: None,
            program,
            comment: String::new(),
            unknown: Vec::new(),
            residue: None,
        }
    }

    /// Opens a `.mlpackage`, `.mlmodelc`, `.mlmodel` or MIL text. Weights are mapped, not read.
    /// A pipeline is opened as its one model, what is said around that not being kept; for one of more see
    /// [`Package::open_pipeline`].
    ///
    /// The program is not verified: see [`verify`](crate::verify()).
    ///
    /// # Errors
    /// When a file is missing, damaged, not an ML program, or names a path outside of the model; one
    /// error lists all operations that the catalogue does not have, before anything else of the
    /// program. Errors name the file, and the function and operation.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let meta = fs::metadata(path).map_err(|e| files::io_error(path, "open", &e))?;
        if !meta.is_dir() {
            return if path.extension().is_some_and(|e| e == "mlmodel") {
                open_model(path)
            } else {
                open_text(path)
            };
        }
        if path.join(manifest::NAME).exists() {
            return open_model(&manifest::root_model(path)?);
        }
        let text = path.join(compiled::TEXT);
        if !text.exists() {
            let parts = pipeline::compiled_models(path);
            if !parts.is_empty() {
                return Self::open(pipeline::only(parts).map_err(|e| e.in_file(path))?);
            }
            let message = format!(
                "holds neither {} (a package) nor {} (a compiled ML program)",
                manifest::NAME,
                compiled::TEXT
            );
            return Err(Error::new(ErrorKind::Invalid, message).in_file(path));
        }
        let (version, metadata) = compiled::metadata(path)?;
        let mut package = open_text(&text)?;
        package.spec_version = version.unwrap_or(package.spec_version);
        package.description = description::of_program(&package.program).ok().map(Kept::from);
        if let Some(description) = &mut package.description {
            description.metadata = Some(metadata.into());
        }
        Ok(package)
    }

    /// The package whose model is `model`, as `model.mlmodel` holds it.
    ///
    /// # Errors
    /// As [`Package::open`], without the file.
    pub fn from_model(model: &[u8], blobs: &dyn BlobSource) -> Result<Self> {
        Self::of_model(pipeline::only(pipeline::models(model)?)?, blobs)
    }

    fn of_model(mut model: Kept<proto::Model>, blobs: &dyn BlobSource) -> Result<Self> {
        let Some(ml_program) = model.ml_program.take() else {
            let message = "the model is no ML program (an older kind of Core ML model)";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let mut program = decode::program(&ml_program, blobs)?;
        if let Some(description) = &model.description {
            add_flexible_shapes(&mut program, description)?;
        }
        Ok(Package {
            spec_version: model.specification_version,
            description: model.message.description,
            program,
            comment: ml_program.doc_string.clone(),
            unknown: model.unknown,
            residue: ml_program.has_residue().then(|| Arc::new(ml_program)),
        })
    }

    /// Takes another program, such as what passes made of this one.
    ///
    /// A description that fits the new program stays. Of another one stays what fits; inputs and outputs of other types or sizes
    /// are described as the functions' signatures have them, and keep what is said of them to people.
    ///
    /// # Errors
    /// When a function's input or output is of a type or of sizes that an interface cannot have.
    pub fn set_program(&mut self, program: Program) -> Result<()> {
        if let Some(old) = &self.description
            && agreement::check(old, &program).is_err()
        {
            self.description = Some(description::renewed(old, &program)?);
        }
        let opsets = program.functions.values().map(|f| types::version_of_opset(f.opset));
        self.spec_version = opsets.fold(self.spec_version, i32::max);
        self.program = program;
        Ok(())
    }

    /// The dialect of the program's text.
    pub fn dialect(&self) -> Dialect {
        if self.spec_version >= types::FIRST_OF_1_3 { Dialect::V1_3 } else { Dialect::V1_0 }
    }

    /// The program's text, as Apple's compiler prints it, over the files its weights lie in.
    ///
    /// # Errors
    /// As [`text::print`].
    pub fn text(&self) -> Result<String> {
        text::print(&self.program, self.dialect())
    }

    /// What function `name` takes and gives.
    ///
    /// # Errors
    /// When there is no such function, or no description and its signature does not make one.
    pub fn interface(&self, name: &str) -> Result<Interface> {
        let derived;
        let description = match &self.description {
            Some(description) => description,
            None => {
                derived = description::of_program(&self.program)?;
                &derived
            }
        };
        let known = self.program.functions.contains_key(name);
        let found = known.then(|| description::interface(description, name)).flatten();
        found.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("no function {name}")))
    }

    /// The function that runs when none is named.
    pub fn default_function(&self) -> Option<&str> {
        let stated = self.description.as_ref().map(|d| d.default_function_name.as_str());
        let functions = &self.program.functions;
        let named = |name: &str| functions.get_key_value(name).map(|(k, _)| k.as_str());
        stated
            .and_then(named)
            .or_else(|| named("main"))
            .or_else(|| functions.keys().next().map(String::as_str))
    }

    /// Writes a `.mlpackage`, in place of one that is there. The file appears whole or not at all.
    ///
    /// Constants of 10 elements and more move to `weights/weight.bin`, as coremltools has it. Fields
    /// that Rigel does not know are written as they were read, for everything that is still there:
    /// functions and operations may have changed or gone meanwhile.
    ///
    /// # Errors
    /// One that lists all operations that Core ML does not have; a type that it does not have; a
    /// description that does not fit the program; and those of the file system.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (model, encoded) = self.to_model().map_err(|e| e.in_file(path))?;
        let bytes = model.encode_to_vec();
        // Protobuf readers, this one and Core ML's, go so deep and no deeper.
        if pipeline::models(&bytes).is_err() {
            let message = "blocks nest deeper than a package can hold";
            return Err(Error::new(ErrorKind::Limit, message).in_file(path));
        }
        save::package(path, &bytes, &encoded.weights, &encoded.layout)
    }

    /// Writes MIL text to `path` and the weights to `weights/weight.bin` beside it, in place of files
    /// that are there. The text appears whole, after its weights, or not at all. It has no
    /// description: what that says besides the functions' signatures is lost.
    ///
    /// # Errors
    /// As [`Package::save`].
    pub fn save_text(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (model, encoded) = self.to_model().map_err(|e| e.in_file(path))?;
        save::text(path, &encoded.weights, &encoded.layout, |folder| {
            // Reading the model again tells where in the file its constants went.
            let blobs = WeightFiles::new(folder);
            let written = Package::from_model(&model.encode_to_vec(), &blobs);
            written.and_then(|p| p.text()).map_err(|e| e.in_file(path))
        })
    }

    /// The file that [`Package::save_text`] writes weights to.
    pub fn weight_file(text: &Path) -> std::path::PathBuf {
        save::weight_file(text)
    }

    /// Says who made the model and what else there is to say, in the description.
    ///
    /// # Errors
    /// When there is no description yet, and the functions' signatures do not make one.
    pub fn set_metadata(&mut self, metadata: Metadata) -> Result<()> {
        let mut description = match self.description.take() {
            Some(description) => description,
            None => description::of_program(&self.program)?.into(),
        };
        description.metadata = Some(metadata.into());
        self.description = Some(description);
        Ok(())
    }

    fn to_model(&self) -> Result<(Kept<proto::Model>, encode::Encoded)> {
        let description = match &self.description {
            Some(description) => description.clone(),
            None => description::of_program(&self.program)?.into(),
        };
        agreement::check(&description, &self.program)?;
        let mut encoded =
            encode::program(&self.program, self.spec_version, self.residue.as_deref())?;
        encoded.program.doc_string.clone_from(&self.comment);
        let message = proto::Model {
            specification_version: self.spec_version,
            description: Some(description),
            pipeline: None,
            ml_program: Some(std::mem::take(&mut encoded.program)),
        };
        Ok((Kept { message, unknown: self.unknown.clone() }, encoded))
    }
}

/// Says in the functions' attributes what a description says of shapes.
fn add_flexible_shapes(program: &mut Program, description: &ModelDescription) -> Result<()> {
    for (name, function) in &mut program.functions {
        let inputs = match description.functions.iter().find(|f| f.name == *name) {
            Some(f) => &f.input,
            None => &description.input,
        };
        let attribute = flexible::attribute(inputs)
            .map_err(|e: OpError| Error::new(e.kind, e.message).in_function(name))?;
        if let Some(attribute) = attribute {
            function.attributes.insert(flexible::ATTRIBUTE.to_owned(), attribute);
        }
    }
    Ok(())
}

/// A specification's bytes and the weight files beside it.
fn map_model(path: &Path) -> Result<(tensor::Bytes, WeightFiles)> {
    let blobs = WeightFiles::new(path.parent().unwrap_or(Path::new(".")));
    Ok((files::map(path)?, blobs))
}

fn open_model(path: &Path) -> Result<Package> {
    let (bytes, blobs) = map_model(path)?;
    Package::from_model(&bytes, &blobs).map_err(|e| e.in_file(path))
}

fn open_text(path: &Path) -> Result<Package> {
    let bytes = files::map(path)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|e| Error::new(ErrorKind::Invalid, format!("not MIL text: {e}")).in_file(path))?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let blobs = WeightFiles::new(folder.unwrap_or(Path::new(".")));
    let parsed = text::parse(text, &blobs).map_err(|e| e.in_file(path))?;
    let mut package = Package::from_program(parsed.program);
    if parsed.dialect == Dialect::V1_3 {
        package.spec_version = package.spec_version.max(types::FIRST_OF_1_3);
    }
    Ok(package)
}
