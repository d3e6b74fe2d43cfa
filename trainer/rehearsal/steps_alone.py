"""The settings of a training of which only the steps count, as on a command line."""

STEPS_ALONE = (
    "--eval_every=null",
    "--sanity_evaluation=false",
    "--save_every=null",
    "--best_metric=null",
    "--early_stop_patience=null",
    "--push_to_hub=null",
    "--profile_steps=null",
    "--trackers=[]",
)
