//! Answers that are told whole.

use axum::http::StatusCode;
use axum::response::Response;

use super::error::ApiError;
use super::facts::ModelCard;
use super::reply::json;
use super::running::Running;
use super::sequence::What;
use crate::boundary::engine::Logprob;
use crate::openai::output::{Done, Provenance, ResponseBody, done, response_body};

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
    let mut prompts: Vec<Vec<Logprob>> = vec![Vec::new(); choices];
    while running.is_open() {
        let news = running.next().await?;
        let order = &running.order;
        match news.what {
            What::Prompt { logprobs, .. } => {
                prompts[news.choice] = logprobs;
            }
            What::Ended(ended) => {
                let is_alone = order.is_prompt_alone(news.choice);
                let answer = if is_alone { ended.answer.emptied() } else { ended.answer };
                let mut made = done(&order.request, news.choice, answer);
                order.of_prompt(news.choice, &prompts[news.choice], model).tell(&mut made.choice);
                answers[news.choice] = Some(made);
            }
            What::Grown(_) | What::Failed(_) | What::Lost(_) => {}
        }
    }
    let answers = answers.into_iter().flatten().collect();
    let body = response_body(&running.order.request, answers, provenance);
    Ok(json(StatusCode::OK, &ResponseBody { usage: running.usage(), ..body }))
}
