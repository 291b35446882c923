package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRenewalsOfAPeriod(t *testing.T) {
	half, tenth := 0.5, 0.1
	p := Period{Renewals: []Renewal{{Margin: &half}, {}, {Margin: &tenth}, {Margin: &half}}, MoreRenewals: 7}
	require.EqualValues(t, 11, p.Renewed())
	require.Equal(t, &tenth, p.LeastMargin())
	p.Renewals = p.Renewals[1:2]
	require.Nil(t, p.LeastMargin())
}
