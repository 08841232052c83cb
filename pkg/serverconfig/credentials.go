package serverconfig

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// The known keys of the credential layers. What is not among them is kept, and masked where its name looks secret.
var (
	oauthKeys = []string{
		"enabled", "token_url", "grant_type", "client_id", "client_secret", "refresh_token", "scope", "audience", "token_field",
		"token_type_field", "expires_in_field", "default_token_type", "refresh_skew_seconds", "extra_token_params",
		"token_endpoint_auth_method",
	}
	authKeys = []string{
		"type", "client_id", "client_secret", "scopes", "redirect_uri", "client_metadata_url", "login_scope", "refresh_token",
		"token_endpoint_auth_method",
	}
	userAuthKeys           = []string{"enabled", "header", "users", "on_missing"}
	headersFromContextKeys = []string{"enabled", "headers", "on_missing"}
)

// credentials reads the credential layers. Their shape is checked and their JSON kept: who sends or fetches the
// credentials reads it.
func (d *decoder) credentials(e *Entry, root strictjson.Value) {
	e.OAuth = d.oauth(root.Get("oauth"))
	e.Auth = d.auth(root.Get("auth"))
	e.UserAuth = d.userAuth(root.Get("user_auth"), e.Transport)
	e.HeadersFromContext = d.headersFromContext(root.Get("headers_from_context"), e.Transport)
	if given(root.Get("login_scope")) {
		e.LoginScope = Scope(d.word("login_scope", root.Get("login_scope"), "user", "shared"))
	}
	e.AllowedUsers = d.filter("allowed_users", root.Get("allowed_users"))
	e.AllowedRoles = d.filter("allowed_roles", root.Get("allowed_roles"))

	if !e.Transport.IsRemote() {
		d.ignored(root, e.Transport, "oauth")
	}
	if e.Auth == nil {
		return
	}
	if !e.Transport.IsRemote() {
		d.report(Problem{Path: "auth", Reason: ReasonConflict, Message: "a stdio server cannot be logged in to", Hint: "remove `auth`; a stdio server gets credentials through `env`"})
	}
	if e.OAuth != nil {
		d.report(Problem{Path: "auth", Reason: ReasonConflict, Message: "auth and oauth exclude each other", Hint: "remove one of them"})
	}
	for name := range root.Get("headers").Members() {
		if strings.EqualFold(name, "authorization") {
			d.report(Problem{
				Path: "auth", Reason: ReasonConflict, Message: "auth and the static header " + strictjson.Field("headers", name) + " exclude each other", Hint: "remove one of them",
			})
		}
	}
}

func (d *decoder) oauth(v strictjson.Value) *Block {
	const path = "oauth"
	if !d.object(path, v) {
		return nil
	}
	at := func(key string) string { return strictjson.Field(path, key) }
	block := &Block{Enabled: d.flag(at("enabled"), v.Get("enabled"), true), JSON: json.RawMessage(v.Raw())}
	d.keys(path, v, SeverityWarning, oauthKeys)
	for _, key := range []string{
		"client_id", "client_secret", "refresh_token", "scope", "audience", "token_field", "token_type_field", "expires_in_field",
		"default_token_type", "token_endpoint_auth_method",
	} {
		d.optionalText(at(key), v.Get(key))
	}
	if tokenURL := v.Get("token_url"); present(tokenURL) {
		d.text(at("token_url"), tokenURL)
	} else {
		d.report(Problem{Path: at("token_url"), Reason: ReasonMissing, Message: "oauth needs a token_url", Hint: "add the address of the token endpoint"})
	}
	d.word(at("grant_type"), v.Get("grant_type"), "client_credentials", "refresh_token")
	d.textMap(at("extra_token_params"), v.Get("extra_token_params"))
	if skew := v.Get("refresh_skew_seconds"); skew.Kind() != strictjson.Missing {
		number, err := strconv.ParseFloat(skew.Raw(), 64)
		if skew.Kind() != strictjson.Number || err != nil || number != math.Trunc(number) {
			d.wrongType(at("refresh_skew_seconds"), "a whole number of seconds", skew)
		}
	}
	return block
}

func (d *decoder) auth(v strictjson.Value) *Block {
	const path = "auth"
	const hint = "write \"oauth\", or {\"type\": \"oauth\", …}"
	if !given(v) {
		return nil
	}
	block := &Block{Enabled: true, JSON: json.RawMessage(v.Raw())}
	switch v.Kind() {
	case strictjson.String:
		if v.Text() != "oauth" {
			d.report(Problem{Path: path, Reason: ReasonUnsupported, Message: "the only kind of login is oauth", Hint: hint})
		}
		return block
	case strictjson.Object:
	default:
		d.report(Problem{Path: path, Reason: ReasonWrongType, Message: "must be \"oauth\" or an object, not " + v.Kind().String(), Hint: hint})
		return block
	}
	at := func(key string) string { return strictjson.Field(path, key) }
	d.keys(path, v, SeverityWarning, authKeys)
	if kind := v.Get("type"); kind.Text() != "oauth" {
		d.report(Problem{Path: at("type"), Reason: ReasonUnsupported, Message: "the only kind of login is oauth", Hint: hint})
	}
	for _, key := range []string{"client_id", "client_secret", "redirect_uri", "client_metadata_url", "refresh_token", "token_endpoint_auth_method"} {
		d.optionalText(at(key), v.Get(key))
	}
	if given(v.Get("scopes")) {
		d.list(at("scopes"), v.Get("scopes"))
	}
	if given(v.Get("login_scope")) {
		d.word(at("login_scope"), v.Get("login_scope"), "user", "shared")
	}
	return block
}

func (d *decoder) userAuth(v strictjson.Value, t Transport) *Block {
	const path = "user_auth"
	if !d.object(path, v) {
		return nil
	}
	at := func(key string) string { return strictjson.Field(path, key) }
	block := &Block{Enabled: d.flag(at("enabled"), v.Get("enabled"), true), JSON: json.RawMessage(v.Raw())}
	d.keys(path, v, SeverityWarning, userAuthKeys)
	if header := v.Get("header"); header.Kind() != strictjson.Missing {
		if name, ok := d.text(at("header"), header); ok {
			d.headerName(at("header"), name)
		}
	}
	users := v.Get("users")
	d.textMap(at("users"), users)
	for user, value := range users.Members() {
		if value.Kind() == strictjson.String && d.isConstant(value.Text()) {
			// One user's value is refused when that user calls; the others are not to suffer from it.
			for _, p := range checkHeader(strictjson.Field(at("users"), user), value.Text()) {
				p.Severity = SeverityWarning
				d.report(p)
			}
		}
	}
	d.onMissing(path, v, block, t)
	return block
}

func (d *decoder) headersFromContext(v strictjson.Value, t Transport) *Block {
	const path = "headers_from_context"
	if !d.object(path, v) {
		return nil
	}
	at := func(key string) string { return strictjson.Field(path, key) }
	block := &Block{Enabled: d.flag(at("enabled"), v.Get("enabled"), true), JSON: json.RawMessage(v.Raw())}
	d.keys(path, v, SeverityWarning, headersFromContextKeys)
	headers := v.Get("headers")
	d.textMap(at("headers"), headers)
	for name, key := range headers.Members() {
		field := strictjson.Field(at("headers"), name)
		d.headerName(field, name)
		if key.Kind() == strictjson.String && strings.TrimSpace(key.Text()) == "" {
			d.report(Problem{Path: field, Reason: ReasonMissing, Message: "needs the key of a request secret", Hint: "write the key under which the caller sends it"})
		}
	}
	d.sameHeader(at("headers"), headers)
	d.onMissing(path, v, block, t)
	return block
}

func (d *decoder) headerName(path, name string) {
	if reason := CheckHeaderName(name); reason != "" {
		d.report(Problem{Path: path, Reason: ReasonBadName, Message: reason, Hint: "name an HTTP header"})
	}
}

// onMissing reads what happens to a call without the credential. A layer that writes headers cannot act on a stdio
// server: where it must not be left out, the server cannot be used.
func (d *decoder) onMissing(path string, v strictjson.Value, block *Block, t Transport) {
	mode := d.word(strictjson.Field(path, "on_missing"), v.Get("on_missing"), "deny", "passthrough")
	if t.IsRemote() || !block.Enabled {
		return
	}
	p := Problem{Path: path, Reason: ReasonConflict, Message: "cannot act on a stdio server, which has no headers", Hint: "remove it, or set `on_missing` to `passthrough`"}
	if mode == "passthrough" {
		p.Severity, p.Reason, p.Hint = SeverityWarning, ReasonIgnored, "remove it"
	}
	d.report(p)
}
