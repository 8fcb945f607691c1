//! Answers that are told whole.

use axum::http::StatusCode;
use axum::response::Response;

use super::error::ApiError;
use super::facts::ModelCard;
use super::reply::json;
use super::running::Running;
use super::sequence::What;
use crate::boundary::engine::Logprob;
use crate::openai::echo::{EchoedPrompt, joined};
use crate::openai::logprobs::TextLogprobs;
use crate::openai::output::{Choice, Done, Provenance, ResponseBody, done, response_body};
use crate::openai::stop::Answer;

/// Waits for all answers.
///
/// # Errors
/// Why not all of them ended.
pub async fn answer(
    mut running: Running,
    provenance: &Provenance,
    model: &ModelCard,
) -> Result<Response, ApiError> {
    let choices = running.order.request.choices();
    let mut answers: Vec<Option<Done>> = vec![None; choices];
    let mut prompts: Vec<Option<TextLogprobs>> = vec![None; choices];
    while running.is_open() {
        let news = running.next().await?;
        let order = &running.order;
        match news.what {
            What::Prompt { logprobs, .. } => {
                prompts[news.choice] = prompt_logprobs(&running, news.choice, &logprobs, model);
            }
            What::Ended(ended) => {
                let answer =
                    if order.is_prompt_alone { emptied(ended.answer) } else { ended.answer };
                let mut made = done(&order.request, news.choice, answer);
                if let Some(prompt) = order.echo_of(news.choice) {
                    prepend(&mut made.choice, prompt, prompts[news.choice].take());
                }
                answers[news.choice] = Some(made);
            }
            What::Grown(_) | What::Failed(_) => {}
        }
    }
    let answers = answers.into_iter().flatten().collect();
    let body = response_body(&running.order.request, answers, provenance);
    Ok(json(StatusCode::OK, &ResponseBody { usage: running.usage(), ..body }))
}

/// Log-probabilities of a prompt that is echoed.
pub fn prompt_logprobs(
    running: &Running,
    choice: usize,
    logprobs: &[Logprob],
    model: &ModelCard,
) -> Option<TextLogprobs> {
    let prompt = running.order.echo_of(choice)?;
    let likely = running.order.request.logprobs?;
    let codec = model.codec.as_deref()?;
    Some(prompt.logprobs(logprobs, likely, codec))
}

/// The answer of a request for its prompt alone.
fn emptied(answer: Answer) -> Answer {
    let tokens = answer.token_ids.len();
    Answer {
        text: answer.text.map(|_| String::new()),
        token_ids: Vec::new(),
        generated: 0,
        logprobs: answer.logprobs.map(|logprobs| logprobs.skip(tokens)),
        ..answer
    }
}

fn prepend(choice: &mut Choice, prompt: &EchoedPrompt, of_prompt: Option<TextLogprobs>) {
    if let Choice::Text { text, logprobs, .. } = choice {
        text.insert_str(0, &prompt.text);
        *logprobs = joined(of_prompt, prompt.characters(), logprobs.take());
    }
}
