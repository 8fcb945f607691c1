//! A model as a run needs it: its configuration, the location of its weights, and its tokenizer.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use grammar::{Grammar, GrammarSet, Vocabulary};
use model::config::ModelConfig;
use model::generation::GenerationDefaults;
use model::hidden_states::HiddenStates;
use model::locate::{LocatedModel, ModelQuery, SearchPaths, WeightsLocation, locate};
use model::quantization::Quantization;
use model::quantized_format::WeightFormat;
use model::source::gguf::GgufSource;
use model::source::safetensors::{SafetensorsSource, quantization};
use model::source::{SourceError, TensorId, TensorPart, WeightSource};
use profiler::ProfileCache;
use program::formats::WeightFormats;
use protocol::messages::WeightsOrigin;
use text::tokenizer::TextTokenizer;
use tokenizer_host::codec::ProcessCodec;
use tokenizer_host::message::TextSource;
use tokenizer_host::process::TextLimits;

use super::argument_error::ArgumentError;
use super::expanded_weights::{ExpandedWeights, QuantisedMatrices};
use super::weights_identity::{weight_files, weights_identity};
use crate::request::{ModelChoice, SessionOptions};

/// A model that was located and whose configuration was read. No weights have been read.
#[derive(Debug)]
pub struct ModelHandle {
    pub config: ModelConfig,
    pub weights: WeightsOrigin,
    /// Formats in which the files store the weights, as far as kernels support them.
    pub stored_formats: WeightFormats,
    /// Elements of the matrices that are quantised in the files.
    quantised: QuantisedMatrices,
    /// Files with the weights; empty for dummy weights.
    weight_files: Vec<PathBuf>,
    /// Location of the tokenizer, if there may be one.
    tokenizer_source: Option<TextSource>,
    /// Tokenizer process, started on first use.
    codec: OnceCell<Option<Arc<ProcessCodec>>>,
}

impl ModelHandle {
    /// Locates the model and reads everything but its weights. `seed` is the seed of dummy weights.
    ///
    /// # Errors
    /// A sentence that names what was searched for, or what is wrong with a file.
    pub fn open(choice: &ModelChoice, seed: u64) -> anyhow::Result<ModelHandle> {
        let places = SearchPaths::from_environment(|name| std::env::var(name).ok());
        let wanted = ModelQuery {
            name: &choice.name,
            revision: choice.revision.as_deref(),
            dummy_weights: choice.dummy_weights,
        };
        let located = locate(wanted, &places)?;
        located.notice.iter().for_each(|notice| eprintln!("{}: {notice}", located.name));
        let mut model = match &located.weights {
            WeightsLocation::Gguf(path) => open_gguf(&located, path)?,
            _ => open_checkpoint(located, seed)?,
        };
        if let Some(layers) = choice.layers {
            let has = model.config.num_layers;
            anyhow::ensure!(layers <= has, "--layers {layers}: {} has {has} layers", choice.name);
            model.config.keep_layers(layers);
            model.stored_formats.layers.truncate(model.config.num_layers);
        }
        if let Some(positions) = choice.positions {
            model.config.max_positions = positions;
        }
        Ok(model)
    }

    /// Opens the model of a session, whose caches and states keep what is drafted.
    ///
    /// # Errors
    /// Fails like [`ModelHandle::open`], or like [`ModelHandle::prediction_layer`] if that drafts.
    pub fn of_session(options: &SessionOptions) -> anyhow::Result<ModelHandle> {
        let mut model = ModelHandle::open(&options.model, options.seed)?;
        if options.drafts_over_states || !model.config.layers.has_states() {
            model.config.layers.set_draft_positions(options.max_drafts as usize);
        }
        if options.uses_prediction_layer {
            let has_layer = model.config.features.prediction_layer.is_some();
            if let Some(layers) = options.model.layers.filter(|_| !has_layer) {
                let sentence = format!(
                    "--speculate mtp: no layer for multi-token prediction follows --layers \
                     {layers}; use all layers of a model that has one"
                );
                return Err(ArgumentError(sentence).into());
            }
            model.prediction_layer()?;
            model.config.features.hidden_states = HiddenStates::Sampled;
        }
        Ok(model)
    }

    /// Returns the layer for multi-token prediction in the model's files, as a model of its own
    /// without a tokenizer.
    ///
    /// # Errors
    /// Files or a family without such a layer.
    pub fn prediction_layer(&self) -> anyhow::Result<ModelHandle> {
        let name = &self.config.name;
        let refusal = |reason: &str| {
            let instead = "use --speculate ngram or --draft-model";
            ArgumentError(format!("--speculate mtp: {name} {reason}; {instead}"))
        };
        if matches!(self.weights, WeightsOrigin::Gguf { .. }) {
            let reason = "is a GGUF file, whose layers for multi-token prediction are not read \
                          (those of safetensors files of GLM-4.5 to 4.7 and DeepSeek V3 are)";
            return Err(refusal(reason).into());
        }
        let config = self.config.prediction_model().ok_or_else(|| {
            refusal(
                "has no layer for multi-token prediction that is supported (safetensors files of \
                 GLM-4.5 to 4.7 and DeepSeek V3 have one)",
            )
        })?;
        let mut stored_formats = WeightFormats::plain(&config);
        let mut quantised = QuantisedMatrices::default();
        if let WeightsOrigin::Safetensors { directory } = &self.weights {
            let source = SafetensorsSource::open(Path::new(directory), &config)?;
            let joining = source.shape(TensorId::JoinHidden { part: TensorPart::Matrix });
            if let Err(error @ SourceError::Missing { .. }) = joining {
                return Err(refusal(&format!("lacks its layer ({error})")).into());
            }
            if quantization(Path::new(directory))? != Quantization::None {
                (stored_formats, quantised) = find_stored_formats(&source, &config)?;
            }
        }
        Ok(ModelHandle {
            config,
            weights: self.weights.clone(),
            stored_formats,
            quantised,
            weight_files: Vec::new(),
            tokenizer_source: None,
            codec: OnceCell::new(),
        })
    }

    /// Returns the tokenizer and chat template of the model; `None` if it only accepts token ids.
    ///
    /// # Errors
    /// Tokenizer files that cannot be used.
    pub fn codec(&self) -> anyhow::Result<Option<&ProcessCodec>> {
        self.start_codec(TextLimits::default()).map(|codec| codec.map(Arc::as_ref))
    }

    /// Returns the tokenizer and chat template for requests of many users. Its process is restarted
    /// regardless of how often it is lost, since the next request may be a different one.
    ///
    /// # Errors
    /// Fails like [`ModelHandle::codec`].
    pub fn shared_codec(&self) -> anyhow::Result<Option<Arc<ProcessCodec>>> {
        self.start_codec(TextLimits::default().without_failure_limit()).map(|codec| codec.cloned())
    }

    fn start_codec(&self, limits: TextLimits) -> anyhow::Result<Option<&Arc<ProcessCodec>>> {
        if let Some(started) = self.codec.get() {
            return Ok(started.as_ref());
        }
        let vocab_size = self.config.vocab_size;
        let started = match &self.tokenizer_source {
            Some(from) => ProcessCodec::start(from.clone(), vocab_size, limits)
                .with_context(|| format!("the model {} cannot be used", self.config.name))?,
            None => None,
        };
        Ok(self.codec.get_or_init(|| started.map(Arc::new)).as_ref())
    }

    /// Returns the location of the tokenizer, if there may be one: the model's directory or file.
    pub(crate) fn tokenizer_source(&self) -> Option<&TextSource> {
        self.tokenizer_source.as_ref()
    }

    /// Returns the name of the tokenizer file of a model whose tokenizer has no supported format.
    pub fn unsupported_tokenizer(&self) -> Option<&'static str> {
        match &self.tokenizer_source {
            Some(TextSource::Directory { path, .. }) => TextTokenizer::unsupported_file(path),
            Some(TextSource::Gguf { .. }) | None => None,
        }
    }

    /// Returns the token that begins a text and those that end one: first the tokenizer's, which
    /// are the only ones that its users know, then the model's other end tokens.
    ///
    /// # Errors
    /// Fails like [`ModelHandle::codec`], or for a tokenizer that does not work.
    pub fn bos_and_eos_tokens(&self) -> anyhow::Result<(Option<u32>, Vec<u32>)> {
        let (bos, eos) = match self.shared_codec()? {
            Some(codec) => codec.boundary_tokens()?,
            None => (self.config.bos_token_id, None),
        };
        let other_ends = self.config.eos_token_ids.iter().copied().filter(|end| Some(*end) != eos);
        Ok((bos, eos.into_iter().chain(other_ends).collect()))
    }

    /// Returns the sampling parameters that the model's publisher recommends.
    ///
    /// # Errors
    /// A file with impossible values.
    pub fn generation(&self) -> anyhow::Result<GenerationDefaults> {
        let read = match &self.tokenizer_source {
            Some(TextSource::Directory { path, .. }) => GenerationDefaults::from_directory(path),
            Some(TextSource::Gguf { path }) => {
                GenerationDefaults::from_metadata(GgufSource::open(path)?.metadata())
            }
            None => Ok(GenerationDefaults::default()),
        };
        read.with_context(|| format!("the model {}", self.config.name))
    }

    /// Returns the weights that take more bytes in memory than in their files: if `all`, every
    /// quantised one, otherwise those whose blocks no kernel reads.
    pub fn expanded_weights(&self, all: bool) -> Option<ExpandedWeights> {
        self.quantised.expanded_weights(all)
    }

    /// Returns a sentence about the layers' weights that are quantised to 4 bits although kernels
    /// read their blocks of more bits; `None` if there are none.
    pub fn requantisation_note(&self) -> Option<String> {
        self.quantised.requantisation_note()
    }

    /// Returns the identity of the weights, which is part of the output's fingerprint. Reads all of
    /// them unless their hashes are stored.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn weights_identity(&self) -> anyhow::Result<String> {
        if let WeightsOrigin::Dummy { seed } = self.weights {
            return Ok(format!("dummy {seed}"));
        }
        weights_identity(&self.weight_files, ProfileCache::of_user().as_ref())
            .with_context(|| format!("the weights of {}", self.config.name))
    }

    /// Returns the compiled grammars for a sampler; `None` if there are none.
    ///
    /// # Errors
    /// A model without an end-of-sequence token.
    pub fn grammars(&self, grammars: Vec<Grammar>) -> anyhow::Result<Option<GrammarSet>> {
        let Some(codec) = self.codec()?.filter(|_| !grammars.is_empty()) else { return Ok(None) };
        anyhow::ensure!(
            !self.config.eos_token_ids.is_empty(),
            "{} has no end-of-sequence token, so structured output (response_format, \
             structured_outputs) is not supported",
            self.config.name
        );
        let vocabulary = self.vocabulary_for(codec)?;
        Ok(Some(GrammarSet::new(vocabulary, grammars, |text| codec.try_encode_part(text))))
    }

    /// Returns the vocabulary from which a sampler compiles grammars later; `None` if the model
    /// does not support structured output.
    ///
    /// # Errors
    /// A tokenizer that does not work.
    pub fn vocabulary(&self) -> anyhow::Result<Option<GrammarSet>> {
        let ends_are_known = !self.config.eos_token_ids.is_empty();
        let Some(codec) = self.codec()?.filter(|_| ends_are_known) else { return Ok(None) };
        Ok(Some(GrammarSet::new(self.vocabulary_for(codec)?, Vec::new(), |_| None)))
    }

    fn vocabulary_for(&self, codec: &ProcessCodec) -> anyhow::Result<Vocabulary> {
        let words = codec.token_bytes()?;
        Ok(Vocabulary { words, ends: self.config.eos_token_ids.clone() })
    }
}

fn open_checkpoint(located: LocatedModel, seed: u64) -> anyhow::Result<ModelHandle> {
    let config = located.config.context("the model has no configuration")?;
    let mut stored = WeightFormats::plain(&config);
    let mut quantised = QuantisedMatrices::default();
    let (weights, weight_files) = match &located.weights {
        WeightsLocation::Safetensors(directory) => {
            if quantization(directory)? != Quantization::None {
                let source = SafetensorsSource::open(directory, &config)?;
                source.notice().iter().for_each(|notice| eprintln!("{}: {notice}", located.name));
                (stored, quantised) = find_stored_formats(&source, &config)?;
            }
            let files = weight_files(directory);
            let directory = directory.to_string_lossy().into_owned();
            (WeightsOrigin::Safetensors { directory }, files)
        }
        _ => (WeightsOrigin::Dummy { seed }, Vec::new()),
    };
    let family = config.family;
    let tokenizer_source =
        located.tokenizer_directory.map(|path| TextSource::Directory { path, family });
    let codec = OnceCell::new();
    Ok(ModelHandle {
        config,
        weights,
        stored_formats: stored,
        quantised,
        weight_files,
        tokenizer_source,
        codec,
    })
}

fn open_gguf(located: &LocatedModel, path: &Path) -> anyhow::Result<ModelHandle> {
    let source = GgufSource::open(path)?;
    let mut config = source.config().clone();
    config.name.clone_from(&located.name);
    let (stored, quantised) = find_stored_formats(&source, &config)?;
    let weights = WeightsOrigin::Gguf { path: path.to_string_lossy().into_owned() };
    let weight_files = source.files();
    let tokenizer_source = Some(TextSource::Gguf { path: path.to_owned() });
    let codec = OnceCell::new();
    Ok(ModelHandle {
        config,
        weights,
        stored_formats: stored,
        quantised,
        weight_files,
        tokenizer_source,
        codec,
    })
}

/// Returns the format in which a file stores each matrix, as far as kernels support it, and the
/// elements of its quantised matrices.
fn find_stored_formats(
    source: &dyn WeightSource,
    config: &ModelConfig,
) -> anyhow::Result<(WeightFormats, QuantisedMatrices)> {
    let mut quantised = QuantisedMatrices::default();
    let mut stored_format = |id, (rows, columns): (usize, usize)| -> anyhow::Result<WeightFormat> {
        let stored = source.stored_type(id)?;
        let of_layer = matches!(id, TensorId::Layer { .. });
        quantised.add(stored, (rows * columns) as u64, of_layer);
        Ok(stored.grouped().map_or(WeightFormat::Plain, WeightFormat::Grouped))
    };
    let vocabulary = (config.vocab_size, config.hidden_size);
    let mut formats = WeightFormats::plain(config);
    formats.embedding = stored_format(TensorId::Embedding, vocabulary)?;
    if !config.tied_embeddings {
        formats.head = stored_format(TensorId::Head, vocabulary)?;
    }
    if let Some(shape) = TensorId::PerLayerTable.expected_shape(config) {
        formats.per_layer_table = stored_format(TensorId::PerLayerTable, shape)?;
    }
    for (layer, formats) in formats.layers.iter_mut().enumerate() {
        for (op, format) in config.layer_ops(layer).iter().zip(formats) {
            let model = config.of_layer(layer);
            if let Some(matrix) = op.weights(model).and_then(|shape| shape.matrix) {
                let stored = stored_format(
                    TensorId::Layer { layer, op: *op, part: TensorPart::Matrix },
                    matrix,
                )?;
                if op.can_be_grouped(model) {
                    *format = stored;
                }
            }
        }
    }
    Ok((formats, quantised))
}

/// Opens weights for the cpu worker.
///
/// # Errors
/// Files that are missing or invalid.
pub fn open_weights(
    from: &WeightsOrigin,
    config: &ModelConfig,
) -> Result<Box<dyn WeightSource>, SourceError> {
    use model::source::dummy::DummySource;
    Ok(match from {
        WeightsOrigin::Safetensors { directory } => {
            Box::new(SafetensorsSource::open(Path::new(directory), config)?)
        }
        WeightsOrigin::Gguf { path } => Box::new(GgufSource::open(Path::new(path))?),
        WeightsOrigin::Dummy { seed } | WeightsOrigin::DummyRandomRouting { seed } => {
            Box::new(DummySource::new(config.clone(), *seed))
        }
    })
}
