// Package helm tests that the schema of the chart has all keys of the configuration, with the
// same types. check.sh tests everything else about the chart.
package helm

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// schema is the part of JSON Schema that values.schema.json uses for config.
type schema struct {
	Ref                  string            `json:"$ref"`
	Type                 string            `json:"type"`
	Pattern              string            `json:"pattern"`
	Enum                 []string          `json:"enum"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties *bool             `json:"additionalProperties"`
	Items                *schema           `json:"items"`
	Definitions          map[string]schema `json:"definitions"`
}

func readSchema(t *testing.T) schema {
	t.Helper()
	text, err := os.ReadFile("unlocker/values.schema.json")
	require.NoError(t, err)
	// Only the definitions: the rest of the file has forms that the type schema cannot represent.
	var whole struct {
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	require.NoError(t, json.Unmarshal(text, &whole))
	s := schema{Definitions: map[string]schema{}}
	for _, name := range []string{"brake", "config", "duration", "mode"} {
		var d schema
		require.NoError(t, json.Unmarshal(whole.Definitions[name], &d), name)
		s.Definitions[name] = d
	}
	return s
}

// resolve replaces a reference by its definition.
func (s schema) resolve(t *testing.T, sub schema) schema {
	t.Helper()
	if sub.Ref == "" {
		return sub
	}
	d, ok := s.Definitions[strings.TrimPrefix(sub.Ref, "#/definitions/")]
	require.True(t, ok, sub.Ref)
	return d
}

func readExample(t *testing.T) (example map[string]any) {
	t.Helper()
	text, err := os.ReadFile("../../config.example.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &example))
	return example
}

// The schema has exactly the keys of config.example.yaml, and accepts their defaults.
func TestSchemaHasAllKeys(t *testing.T) {
	s := readSchema(t)
	s.compare(t, "config", s.Definitions["config"], readExample(t))
}

func (s schema) compare(t *testing.T, at string, sub schema, section map[string]any) {
	t.Helper()
	require.Equal(t, "object", sub.Type, at)
	require.NotNil(t, sub.AdditionalProperties, "%s accepts unknown keys", at)
	require.False(t, *sub.AdditionalProperties, "%s accepts unknown keys", at)
	require.ElementsMatch(t, slices.Collect(maps.Keys(section)), slices.Collect(maps.Keys(sub.Properties)),
		"keys of config.example.yaml, and of the schema, in %s", at)
	for key, value := range section {
		name, known := at+"."+key, s.resolve(t, sub.Properties[key])
		if inner, ok := value.(map[string]any); ok {
			s.compare(t, name, known, inner)
			continue
		}
		known.requireAccepts(t, name, value)
	}
}

// requireAccepts requires that the schema accepts the default of a key.
func (s schema) requireAccepts(t *testing.T, name string, value any) {
	t.Helper()
	switch v := value.(type) {
	case string:
		if s.Enum != nil {
			require.Contains(t, s.Enum, v, name)
			return
		}
		require.Equal(t, "string", s.Type, name)
		require.Regexp(t, s.Pattern, v, name)
		// A duration must have the pattern of durations.
		require.Equal(t, regexp.MustCompile(`^[0-9]+[smh]$`).MatchString(v), strings.Contains(s.Pattern, "ms"), name)
	case int:
		require.Contains(t, []string{"integer", "number"}, s.Type, name)
	case float64:
		require.Equal(t, "number", s.Type, name)
	case bool:
		require.Equal(t, "boolean", s.Type, name)
	case []any:
		require.Equal(t, "array", s.Type, name)
	default:
		require.Failf(t, "a default of an unexpected type", "%s: %T", name, value)
	}
}

// The policies in config.example.yaml are empty. An example is in a comment.
func TestSchemaHasAllKeysOfPolicies(t *testing.T) {
	s := readSchema(t)
	text, err := os.ReadFile("../../config.example.yaml")
	require.NoError(t, err)
	block := regexp.MustCompile(`(?m)^#   - match:.*\n(#     .*\n)+`).FindString(string(text))
	require.NotEmpty(t, block)
	var example []map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(regexp.MustCompile(`(?m)^# `).ReplaceAllString(block, "")), &example))
	require.Len(t, example, 1)
	items := s.Definitions["config"].Properties["policies"].Items
	require.NotNil(t, items)
	s.compare(t, "policies[0]", *items, example[0])
}
