//! Sign-in: the SDK's own OAuth, with a browser that follows each redirect at once.

use std::{collections::HashMap, error::Error};

use reqwest::{Client, Url, header, redirect};
use rmcp::transport::auth::{AuthorizationManager, AuthorizationRequest, OAuthState};

/// Nothing listens there: the browser reads the address to which it is sent.
const CALLBACK: &str = "http://127.0.0.1:9/callback";

/// Signs in at the server's authorization server; the tokens stay in memory.
pub async fn sign_in(url: &str) -> Result<AuthorizationManager, Box<dyn Error>> {
    let mut state = OAuthState::new(url, None).await?;
    state.start_authorization(AuthorizationRequest::new(CALLBACK).with_client_name("e2e")).await?;
    let arrived = browse(&state.get_authorization_url().await?).await?;
    state.handle_callback_url(arrived.as_str()).await?;
    state.into_authorization_manager().ok_or_else(|| "the sign-in has not ended".into())
}

/// Follows the redirects from `url` with the cookies that they set; returns the callback's URL.
async fn browse(url: &str) -> Result<Url, Box<dyn Error>> {
    let client = Client::builder().redirect(redirect::Policy::none()).build()?;
    let mut cookies = HashMap::new();
    let mut url = Url::parse(url)?;
    for _ in 0..10 {
        let sent: Vec<_> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let page = client.get(url.clone()).header(header::COOKIE, sent.join("; ")).send().await?;
        for set in page.headers().get_all(header::SET_COOKIE) {
            let pair = set.to_str()?.split(';').next().and_then(|pair| pair.split_once('='));
            cookies.extend(pair.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        let to = page.headers().get(header::LOCATION).ok_or_else(|| format!("{url}: status {}", page.status()))?;
        url = url.join(to.to_str()?)?;
        if url.as_str().starts_with(CALLBACK) {
            return Ok(url);
        }
    }
    Err("the authorization server redirects for ever".into())
}
