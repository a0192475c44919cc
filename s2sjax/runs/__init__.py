"""An experiment and its folder.

experiment_file   imports an experiment file and the files beside it
stored_code       the code that a run folder keeps
lock              one process at a time trains in a folder
lease             the same in object storage
folder            config.json and assets of a run
initial_settings  the settings that an experiment takes from another run
evaluations       the results and outputs of an evaluation
dev_evaluation    evaluation during training
train_run         the stages of training: resolve, open the folder, build, fit
debugging         a few steps without jit
run               a trained run: decode, score, evaluate
comparison        whether one run is better than another
table_formats     a table as text, CSV, JSON, Markdown or LaTeX
sweeps            many trainings as one program, and the table of their results
"""
