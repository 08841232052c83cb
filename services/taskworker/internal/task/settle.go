package task

import "errors"

// SettleEach has a store settle outcomes together and, if that does not work, one by one, so that one which cannot be
// written hinders no other. Retry says whether an error may be due to a single row.
func SettleEach(outcomes []Outcome, settle func([]Outcome) ([]Settled, error), retry func(error) bool) ([]Settled, error) {
	settled, err := settle(outcomes)
	if err == nil || len(outcomes) < 2 || !retry(err) {
		return settled, err
	}
	settled = make([]Settled, 0, len(outcomes))
	var errs []error
	for i, o := range outcomes {
		one, err := settle(outcomes[i : i+1])
		if err != nil {
			errs = append(errs, err)
			one = []Settled{{TaskID: o.Claim.TaskID, Dropped: true}}
			if !retry(err) {
				settled = append(settled, one...)
				for _, rest := range outcomes[i+1:] {
					settled = append(settled, Settled{TaskID: rest.Claim.TaskID, Dropped: true})
				}
				break
			}
		}
		settled = append(settled, one...)
	}
	return settled, errors.Join(errs...)
}
