package config

import "log/slog"

const redacted = "<redacted>"

// Secret is a value that formatting, logging and encoding do not show; Reveal does. The zero Secret is the empty one. The value is behind a
// pointer because fmt calls no methods on unexported fields: a Config in a field of another struct must not print its password either.
// == therefore does not compare Secrets.
type Secret struct{ value *string }

// NewSecret returns a Secret that reveals s.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{&s}
}

// Reveal returns the secret itself, for the one place that sends it.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// String returns "<redacted>", or "" for the empty secret.
func (s Secret) String() string {
	if s.value == nil {
		return ""
	}
	return redacted
}

// LogValue redacts in slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText redacts in JSON, YAML and every other encoding that asks for text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
